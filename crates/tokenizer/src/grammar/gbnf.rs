//! llama.cpp's grammars, written as the Lark that the parser reads.
//!
//! The two differ in spelling: `::=` and names with dashes, character classes, escapes. They also
//! differ in what is cut into lexemes: Lark does so at terminals, GBNF never. A rule that leads into
//! no recursion is written as one terminal, so that what is in it is never cut; in rules that do,
//! each literal is a lexeme of its own.

use std::collections::BTreeMap;

/// A rule on its way.
struct Rule {
    name: String,
    body: String,
    /// Rules that it names, where `body` has a mark and the number.
    refs: Vec<String>,
}

/// Stands before and after a rule's name in a body.
const MARK: char = '\u{1}';

/// Whether a grammar is one: it defines `root`, in a spelling that Lark does not have.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.trim_start().strip_prefix("root");
        rest.is_some_and(|rest| rest.trim_start().starts_with("::="))
    })
}

/// The grammar in Lark.
///
/// # Errors
/// What is wrong with it, and in which line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let rules = Parser { text, at: 0 }.rules()?;
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, rule) in rules.iter().enumerate() {
        if known.insert(&rule.name, i).is_some() {
            return Err(format!("the rule {} is defined twice", rule.name));
        }
    }
    let root = *known.get("root").ok_or("there is no rule root")?;
    let mut edges = Vec::with_capacity(rules.len());
    for rule in &rules {
        let numbers = rule.refs.iter().map(|name| {
            known.get(name.as_str()).copied().ok_or_else(|| {
                format!("the rule {name} is used in {} and defined nowhere", rule.name)
            })
        });
        edges.push(numbers.collect::<Result<Vec<_>, _>>()?);
    }
    let recursive = into_recursion(&edges);
    // Terminals have upper case names.
    let name = |i: usize| if recursive[i] { format!("r{i}") } else { format!("T{i}") };
    let mut out = format!("start: {}\n", name(root));
    for (i, rule) in rules.iter().enumerate() {
        let mut body = String::new();
        for (part, piece) in rule.body.split(MARK).enumerate() {
            match known.get(piece) {
                Some(&number) if part % 2 == 1 => body.push_str(&name(number)),
                _ => body.push_str(piece),
            }
        }
        out.push_str(&format!("{}: {body}\n", name(i)));
    }
    Ok(out)
}

/// Which rules can come back to a rule that they came through.
fn into_recursion(edges: &[Vec<usize>]) -> Vec<bool> {
    // A rule leads into none when all that it names lead into none; what is never found to be such
    // does.
    let mut users = vec![Vec::new(); edges.len()];
    let mut open: Vec<usize> = edges.iter().map(Vec::len).collect();
    for (rule, named) in edges.iter().enumerate() {
        for &other in named {
            users[other].push(rule);
        }
    }
    let mut done: Vec<usize> = (0..edges.len()).filter(|&rule| open[rule] == 0).collect();
    let mut recursive = vec![true; edges.len()];
    while let Some(rule) = done.pop() {
        recursive[rule] = false;
        for &user in &users[rule] {
            open[user] -= 1;
            if open[user] == 0 {
                done.push(user);
            }
        }
    }
    recursive
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn problem(&self, what: &str) -> String {
        let line = self.text[..self.at].lines().count().max(1);
        format!("line {line}: {what}")
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                let end = self.rest().find('\n').unwrap_or(self.rest().len());
                self.at += end;
            } else if c.is_whitespace() {
                self.next();
            } else {
                break;
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let length = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
        let name = self.rest()[..length].to_string();
        self.at += length;
        (length > 0).then_some(name)
    }

    /// Whether a rule's definition begins here.
    fn at_definition(&mut self) -> bool {
        let from = self.at;
        let is = self.name().is_some() && {
            self.skip();
            self.rest().starts_with("::=")
        };
        self.at = from;
        is
    }

    fn rules(&mut self) -> Result<Vec<Rule>, String> {
        let mut rules = Vec::new();
        loop {
            self.skip();
            if self.rest().is_empty() {
                return Ok(rules);
            }
            let name = self.name().ok_or_else(|| self.problem("a rule's name is expected"))?;
            self.skip();
            if !self.rest().starts_with("::=") {
                return Err(self.problem("::= is expected"));
            }
            self.at += 3;
            let mut rule = Rule { name, body: String::new(), refs: Vec::new() };
            self.body(&mut rule)?;
            rules.push(rule);
        }
    }

    /// Up to the next definition. Groups and alternatives are spelt alike.
    fn body(&mut self, rule: &mut Rule) -> Result<(), String> {
        let (mut depth, mut empty) = (0usize, true);
        loop {
            self.skip();
            let over = self.rest().is_empty() || depth == 0 && self.at_definition();
            let next = if over { '\n' } else { self.peek().unwrap_or('\n') };
            if matches!(next, '\n' | '|' | ')') && empty {
                rule.body.push_str("\"\"");
            }
            empty = matches!(next, '|' | '(');
            match next {
                '\n' if depth > 0 => return Err(self.problem("a ) is missing")),
                '\n' => return Ok(()),
                ')' if depth == 0 => return Err(self.problem("there is a ) too many")),
                '(' | '|' | ')' => {
                    self.next();
                    match next {
                        '(' => depth += 1,
                        ')' => depth -= 1,
                        _ => {}
                    }
                    rule.body.push(next);
                    rule.body.push(' ');
                    if next == ')' {
                        self.quantifiers(rule)?;
                    }
                    continue;
                }
                '"' => self.literal(rule)?,
                '[' => self.class(rule)?,
                '.' => {
                    self.next();
                    rule.body.push_str("/(?s:.)/");
                }
                '<' => return Err(self.problem("tokens cannot be named here")),
                _ => {
                    let unknown = || format!("{next:?} is not expected");
                    let name = self.name().ok_or_else(|| self.problem(&unknown()))?;
                    rule.body.push(MARK);
                    rule.body.push_str(&name);
                    rule.body.push(MARK);
                    rule.refs.push(name);
                }
            }
            self.quantifiers(rule)?;
            rule.body.push(' ');
        }
    }

    fn quantifiers(&mut self, rule: &mut Rule) -> Result<(), String> {
        self.skip();
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.next();
                rule.body.push(c);
            }
            Some('{') => {
                let end = self.rest().find('}').ok_or_else(|| self.problem("a } is missing"))?;
                let inside: String =
                    self.rest()[1..end].chars().filter(|c| !c.is_whitespace()).collect();
                let numbers = inside.split(',').all(|n| n.chars().all(|c| c.is_ascii_digit()));
                if !numbers || inside.matches(',').count() > 1 || inside.starts_with(',') {
                    return Err(self.problem("{m}, {m,} or {m,n} is expected"));
                }
                self.at += end + 1;
                rule.body.push_str(&format!("{{{inside}}}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn literal(&mut self, rule: &mut Rule) -> Result<(), String> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err(self.problem("a \" is missing")),
                Some('"') => break,
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
            }
        }
        rule.body.push_str(&serde_json::Value::from(text).to_string());
        Ok(())
    }

    fn class(&mut self, rule: &mut Rule) -> Result<(), String> {
        self.next();
        rule.body.push_str("/[");
        if self.peek() == Some('^') {
            self.next();
            rule.body.push('^');
        }
        let mut first = true;
        loop {
            let c = match self.next() {
                None => return Err(self.problem("a ] is missing")),
                Some(']') if first => return Err(self.problem("a class of characters is empty")),
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some('-') if !first && self.peek() != Some(']') => {
                    rule.body.push('-');
                    continue;
                }
                Some(c) => c,
            };
            first = false;
            // By number, so that no character means anything else.
            rule.body.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        }
        rule.body.push_str("]/");
        Ok(())
    }

    fn escape(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/' | '\'' | '.')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.problem("there is no such escape")),
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let c = code.and_then(char::from_u32);
        let c = c.ok_or_else(|| self.problem("the escape names no character"))?;
        self.at += digits;
        Ok(c)
    }
}
