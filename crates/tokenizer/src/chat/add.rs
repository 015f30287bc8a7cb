//! `+` in templates, with its work charged.
//!
//! The template engine concatenates lists lazily, and free of charge even where it has to write the
//! items out, so that a list added to itself a few dozen times fills the memory. Here the instruction
//! that adds is replaced by a filter, which copies the items of lists and stops where the fuel does.

use std::collections::BTreeMap;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// The filter's name: none that a template can spell.
const NAME: &str = "+";
/// No slot in the engine's cache of filters.
const NOT_CACHED: u8 = !0;
/// List items that a unit of fuel pays for.
const ITEMS_PER_FUEL: usize = 2;

/// Makes the filter known.
pub(super) fn register(environment: &mut Environment<'_>) {
    environment.add_filter(NAME, add);
}

/// Replaces the instruction wherever it stands.
pub(super) fn replace(template: &mut CompiledTemplate<'_>) {
    fn within(instructions: &mut Instructions<'_>) {
        for index in 0.. {
            match instructions.get_mut(index) {
                Some(add @ Instruction::Add) => {
                    *add = Instruction::ApplyFilter(NAME, Some(2), NOT_CACHED);
                }
                Some(_) => {}
                None => break,
            }
        }
    }
    within(&mut template.instructions);
    let blocks: &mut BTreeMap<_, _> = &mut template.blocks;
    blocks.values_mut().for_each(within);
}

fn add(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str())
        && !a.is_safe()
        && !b.is_safe()
    {
        return Ok(Value::from([x, y].concat()));
    }
    if is_list(a) && is_list(b) {
        return add_lists(state, a, b);
    }
    // Numbers, tuples, and what cannot be added: as the engine has it.
    let values = Value::from_pairs([("a", a.clone()), ("b", b.clone())]);
    Environment::empty().compile_expression("a + b")?.eval(values)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !value.is_tuple()
}

/// The items of both. The engine charges for the list when it has it; while it grows, it must not
/// outgrow what is left to pay for it.
fn add_lists(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    let most = usize::try_from(left).unwrap_or(usize::MAX).saturating_mul(ITEMS_PER_FUEL);
    let mut items = Vec::new();
    for item in a.try_iter()?.chain(b.try_iter()?) {
        if items.len() >= most {
            return Err(ErrorKind::OutOfFuel.into());
        }
        if item.kind() == ValueKind::Invalid {
            return Err(Error::new(ErrorKind::InvalidOperation, item.to_string()));
        }
        items.push(item);
    }
    Ok(Value::from(items))
}
