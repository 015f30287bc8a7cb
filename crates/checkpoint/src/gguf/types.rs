//! Names of tensor types that the format knows and this project does not compute with.

use dunlin_spec::WeightType;

use crate::CheckpointError;

/// Ids and names of ggml's other types, for messages.
const OTHER: [(u32, &str); 20] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (4, "Q4_2 (removed from the format)"),
    (5, "Q4_3 (removed from the format)"),
    (31, "Q4_0_4_4 (removed from the format)"),
];

/// Names the supported types, in the order of the type list.
pub(crate) fn supported_types() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

/// The error for a tensor of a type that is not supported.
pub(crate) fn unsupported_type(tensor: &str, id: u32) -> CheckpointError {
    let name = OTHER.iter().find(|(i, _)| *i == id).map_or("unknown", |(_, n)| n);
    CheckpointError::UnsupportedTensorType {
        tensor: tensor.into(),
        type_name: format!("{name} (id {id})"),
        supported: supported_types(),
    }
}
