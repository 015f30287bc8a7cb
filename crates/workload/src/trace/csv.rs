//! Comma-separated values: columns found by the names in the header, fields as slices of the line.

use super::error::{Column, Problem};

/// Where `N` named columns are.
#[derive(Debug, Clone)]
pub(super) struct Csv<const N: usize> {
    names: [&'static str; N],
    /// For each column of the file, the named column that it is.
    slots: Vec<Option<u8>>,
}

impl<const N: usize> Csv<N> {
    /// The columns in `header`. Those from `required` on may be missing; their fields are empty.
    pub(super) fn new(
        header: &str,
        names: [&'static str; N],
        required: usize,
    ) -> Result<Self, (Column, Problem)> {
        let mut slots = Vec::new();
        for field in Fields(Some(header)) {
            slots.push(names.iter().position(|name| *name == field.trim()).map(|i| i as u8));
        }
        let missing = (0..required).find(|i| !slots.contains(&Some(*i as u8)));
        match missing {
            Some(i) => Err((Column::Name(names[i]), Problem::NoColumn)),
            None => Ok(Self { names, slots }),
        }
    }

    /// The column of this place, for errors.
    pub(super) const fn name(&self, at: usize) -> Column {
        Column::Name(self.names[at])
    }

    /// Whether the file has a column.
    pub(super) fn has(&self, at: usize) -> bool {
        self.slots.contains(&Some(at as u8))
    }

    /// The named columns' fields.
    #[inline]
    pub(super) fn fields<'a>(&self, line: &'a str) -> Result<[&'a str; N], (Column, Problem)> {
        let mut found = [""; N];
        let mut count = 0;
        for field in Fields(Some(line)) {
            if let Some(Some(slot)) = self.slots.get(count) {
                found[*slot as usize] = field;
            }
            count += 1;
        }
        if count != self.slots.len() {
            let problem = Problem::Fields { found: count, expected: self.slots.len() };
            return Err((Column::Row, problem));
        }
        Ok(found)
    }
}

/// The fields of a line. Quotes around a field are taken off; commas within them do not end it.
struct Fields<'a>(Option<&'a str>);

impl<'a> Iterator for Fields<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        if let Some(quoted) = rest.strip_prefix('"') {
            // Doubled quotes stay doubled: no column that is read has any.
            let mut from = 0;
            while let Some(at) = quoted[from..].find('"').map(|at| at + from) {
                match quoted.as_bytes().get(at + 1) {
                    Some(b'"') => from = at + 2,
                    Some(b',') => {
                        self.0 = Some(&quoted[at + 2..]);
                        return Some(&quoted[..at]);
                    }
                    None => {
                        self.0 = None;
                        return Some(&quoted[..at]);
                    }
                    Some(_) => break,
                }
            }
            // Not a quoted field after all.
        }
        match rest.bytes().position(|b| b == b',') {
            Some(at) => {
                self.0 = Some(&rest[at + 1..]);
                Some(&rest[..at])
            }
            None => {
                self.0 = None;
                Some(rest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_at_commas_outside_quotes() {
        let all = |line| Fields(Some(line)).collect::<Vec<_>>();
        assert_eq!(all("a,b,,c"), ["a", "b", "", "c"]);
        assert_eq!(all(""), [""]);
        assert_eq!(all("1,\"[2, 3]\",4"), ["1", "[2, 3]", "4"]);
        assert_eq!(all("\"a\"\"b\",c"), ["a\"\"b", "c"]);
        assert_eq!(all("\"a"), ["\"a"]);
        assert_eq!(all("\"a\"b,c"), ["\"a\"b", "c"]);
        assert_eq!(all("\"a\""), ["a"]);
    }

    #[test]
    fn columns_are_found_by_name() {
        let csv = Csv::new("x, a ,b", ["b", "a", "z"], 2).unwrap();
        assert_eq!(csv.fields("1,2,3").unwrap(), ["3", "2", ""]);
        assert!(!csv.has(2));
        assert_eq!(
            csv.fields("1,2").unwrap_err(),
            (Column::Row, Problem::Fields { found: 2, expected: 3 })
        );
        let missing = Csv::new("x,a", ["b", "a"], 2).unwrap_err();
        assert_eq!(missing, (Column::Name("b"), Problem::NoColumn));
    }
}
