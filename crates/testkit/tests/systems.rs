//! docs/systems.md says of every system how far it is, and says it from one source.

use std::fmt::Write as _;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    system: Vec<System>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    id: String,
    name: String,
    what: String,
    contract: Contract,
    state: State,
    result: Option<String>,
    command: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Contract {
    Exact,
    Distribution,
    Bounded,
    Measured,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
enum State {
    #[serde(rename = "built")]
    Built,
    #[serde(rename = "partly")]
    Partly,
    #[serde(rename = "not yet")]
    NotYet,
}

impl Contract {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Distribution => "distribution",
            Self::Bounded => "bounded",
            Self::Measured => "measured",
        }
    }
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Built => "built",
            Self::Partly => "partly",
            Self::NotYet => "not yet",
        }
    }
}

/// The ids of the 210 systems, in order.
fn expected_ids() -> Vec<String> {
    [('A', 60), ('B', 30), ('C', 120)]
        .into_iter()
        .flat_map(|(file, count)| (1..=count).map(move |n| format!("{file}{n:03}")))
        .collect()
}

fn load() -> Vec<System> {
    let path = dunlin_testkit::workspace_root().join("docs/systems.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    toml::from_str::<Source>(&text).unwrap_or_else(|e| panic!("docs/systems.toml: {e}")).system
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn page(systems: &[System]) -> String {
    let count = |state| systems.iter().filter(|s| s.state == state).count();
    let mut page = format!(
        "<!-- Generated from systems.toml: DUNLIN_UPDATE=1 cargo test -p dunlin-testkit --test systems -->\n\
         # The systems, and how far each one is\n\
         \n\
         dunlin sets out to make {} published systems real. {} are built, {} partly, {} not yet.\n\
         \n\
         The **contract** is what the system promises of its output beside plain decoding: `exact` is the\n\
         same bits, `distribution` the same distribution of samples, `bounded` a certified bound with a\n\
         fallback, `measured` a loss (or a figure) that is measured and reported. **State**: `built` means\n\
         that its command shows it working here; `partly`, that the result says what is missing; `not yet`,\n\
         that nothing a user can run is there.\n",
        systems.len(),
        count(State::Built),
        count(State::Partly),
        count(State::NotYet),
    );
    let mut file = ' ';
    for s in systems {
        let first = s.id.chars().next().unwrap();
        if first != file {
            file = first;
            let _ = write!(
                page,
                "\n## {file}\n\n| id | name | what it is | contract | state | measured result | command |\n|---|---|---|---|---|---|---|\n"
            );
        }
        let command = s.command.as_deref().map(|c| format!("`{}`", cell(c))).unwrap_or_default();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            s.id,
            cell(&s.name),
            cell(&s.what),
            s.contract.name(),
            s.state.name(),
            s.result.as_deref().map(cell).unwrap_or_default(),
            command,
        );
    }
    page
}

#[test]
fn every_system_is_listed_once() {
    let ids: Vec<String> = load().into_iter().map(|s| s.id).collect();
    assert_eq!(ids, expected_ids());
}

#[test]
fn what_is_built_has_a_result_and_a_command() {
    for s in load() {
        assert!(!s.name.trim().is_empty() && !s.what.trim().is_empty(), "{}: empty text", s.id);
        let shown = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.trim().is_empty());
        match s.state {
            State::Built | State::Partly => {
                assert!(shown(&s.result), "{}: {} without a result", s.id, s.state.name());
                assert!(shown(&s.command), "{}: {} without a command", s.id, s.state.name());
            }
            State::NotYet => assert!(
                s.result.is_none() && s.command.is_none(),
                "{}: not yet, so it can show neither a result nor a command",
                s.id
            ),
        }
    }
}

#[test]
fn the_page_is_what_the_source_generates() {
    dunlin_testkit::check_generated(
        "docs/systems.md",
        &page(&load()),
        "cargo test -p dunlin-testkit --test systems",
    );
}
