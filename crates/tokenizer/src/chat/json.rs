//! `tojson` as Python's `json.dumps` writes it: spaces behind separators, no HTML escaping,
//! Python's spelling of numbers, keys in their given order.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

const DEPTH_LIMIT: usize = 100;

/// What one level of nesting is indented by.
pub(super) struct Indent(String);

impl Indent {
    /// From a number of spaces or a string; `None` for values that mean no indentation.
    pub fn from_value(value: &Value) -> Option<Indent> {
        if let Some(text) = value.as_str() {
            return Some(Indent(text.to_string()));
        }
        let spaces = value.as_i64()?;
        Some(Indent(" ".repeat(spaces.clamp(0, 64) as usize)))
    }
}

/// The keyword arguments of `tojson`.
pub(super) struct Style {
    pub indent: Option<Indent>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// Between items, and between key and value.
    pub separators: Option<Vec<String>>,
}

/// Writes a value as JSON.
pub(super) fn dumps(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let (between, colon) = match style.separators.as_deref() {
        Some([between, colon]) => (between.as_str(), colon.as_str()),
        Some(_) => return Err(invalid("separators must be two strings")),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer { state, style, between, colon, out: String::new(), paid: 0 };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn invalid(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

struct Writer<'a, 'state, 'env> {
    state: &'a State<'state, 'env>,
    style: &'a Style,
    between: &'a str,
    colon: &'a str,
    out: String,
    /// Bytes of output already charged against the template's fuel.
    paid: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_LIMIT {
            return Err(invalid("a value is nested too deeply for tojson"));
        }
        // The engine charges for the result; this stops a huge one from being made at all.
        if self.out.len() - self.paid >= 4096 {
            self.state.consume_fuel(64)?;
            self.paid += 4096;
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Undefined => return Err(invalid("an undefined value is not JSON")),
            kind => return Err(invalid(format!("a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            let number = f64::try_from(value.clone())?;
            self.out.push_str(&python_float(number));
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()? {
            self.separate(any, depth + 1);
            any = true;
            self.value(&item, depth + 1)?;
        }
        self.close(any, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            let item = value.get_item(&key)?;
            let key = match key.kind() {
                ValueKind::String => key.as_str().unwrap_or_default().to_string(),
                ValueKind::None => "null".to_string(),
                ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
                ValueKind::Number if key.is_integer() => key.to_string(),
                ValueKind::Number => python_float(f64::try_from(key)?),
                kind => return Err(invalid(format!("a key of type {kind} is not JSON"))),
            };
            entries.push((key, item));
        }
        if self.style.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        let any = !entries.is_empty();
        for (index, (key, item)) in entries.iter().enumerate() {
            self.separate(index > 0, depth + 1);
            self.string(key);
            self.out.push_str(self.colon);
            self.value(item, depth + 1)?;
        }
        self.close(any, depth, '}');
        Ok(())
    }

    /// What goes before an item.
    fn separate(&mut self, after_another: bool, depth: usize) {
        if after_another {
            self.out.push_str(self.between);
        }
        self.newline(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.newline(depth);
        }
        self.out.push(bracket);
    }

    fn newline(&mut self, depth: usize) {
        if let Some(Indent(indent)) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..' ' => self.escape(c as u16),
                _ if self.style.ensure_ascii && (c as u32) >= 0x7f => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.escape(*unit);
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, unit: u16) {
        self.out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// A float as Python prints it: the fewest digits that read back, an exponent from 1e16 on and
/// below 1e-4.
pub(super) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_read_as_in_python() {
        // Checked against repr() of CPython 3.11.
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
        ];
        for (number, expected) in cases {
            assert_eq!(python_float(number), expected);
        }
    }
}
