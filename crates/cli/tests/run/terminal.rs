//! A chat in a terminal, which `script` (of util-linux) makes, and Ctrl-C.

use std::{
    io::{Read as _, Write as _},
    process::{ChildStdin, ChildStdout, Command},
};

use crate::support::{Dunlin, spawn};

/// Both ends of a terminal.
struct Terminal {
    keys: ChildStdin,
    screen: ChildStdout,
    /// All that was shown.
    shown: String,
}

impl Terminal {
    /// Reads until `text` was shown `times` times in all.
    fn wait_for(&mut self, text: &str, times: usize) {
        let mut bytes = [0; 4096];
        while self.shown.matches(text).count() < times {
            let n = self.screen.read(&mut bytes).unwrap();
            assert!(n > 0, "the terminal closed before {text:?}: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    }

    fn type_line(&mut self, text: &str) {
        self.keys.write_all(format!("{text}\r").as_bytes()).unwrap();
    }
}

#[test]
fn a_chat_answers_saves_and_leaves() {
    if Command::new("script").arg("--version").output().is_err() {
        dunlin_testkit::models::skipped("a_chat_answers_saves_and_leaves", "there is no `script`");
        return;
    }
    let dunlin = Dunlin::tiny();
    let saved = dunlin.file("saved.json", "");
    let chat = dunlin.command("run");
    let mut words: Vec<String> = [chat.get_program()]
        .into_iter()
        .chain(chat.get_args())
        .map(|word| word.to_str().unwrap().to_string())
        .collect();
    words.extend(["-n", "6", "--seed", "1", "--ignore-eos", "-v"].map(String::from));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    for (name, value) in chat.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("TERM", "xterm");
    let mut child = spawn(&mut command);
    let mut terminal = Terminal {
        keys: child.stdin.take().unwrap(),
        screen: child.stdout.take().unwrap(),
        shown: String::new(),
    };
    terminal.wait_for("/help shows the commands", 1);
    terminal.wait_for("> ", 1);
    terminal.type_line("hello");
    terminal.wait_for("(0 cached)", 1);
    terminal.type_line("and more");
    terminal.wait_for(" cached)", 2);
    terminal.type_line("/nonsense");
    terminal.wait_for("/nonsense is no command", 1);
    terminal.type_line(&format!("/save {}", saved.display()));
    terminal.wait_for("saved 4 messages", 1);
    terminal.type_line("/exit");
    assert!(child.wait().unwrap().success(), "{}", terminal.shown);
    let messages: serde_json::Value =
        serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(messages[2]["content"], "and more");
    // The second turn found the first one's KV.
    let cached = terminal.shown.split(" cached)").nth(1).and_then(|t| t.rsplit('(').next());
    assert!(cached.and_then(|n| n.parse::<usize>().ok()) > Some(5), "{}", terminal.shown);
}

#[test]
fn an_interrupt_ends_the_answer_with_its_exit_code() {
    let dunlin = Dunlin::tiny();
    // A batch long enough to be interrupted whenever the signal comes.
    let lines = "{\"prompt\":\"of\",\"n\":16,\"max_tokens\":200}\n".repeat(2000);
    let prompts = dunlin.file("prompts.jsonl", lines);
    let mut command = dunlin.command("run");
    command.args([
        "--batch",
        prompts.to_str().unwrap(),
        "--raw",
        "--ignore-eos",
        "--parallel",
        "32",
    ]);
    let mut child = spawn(&mut command);
    // The first result shows that it runs.
    let mut out = child.stdout.take().unwrap();
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    reader.join().unwrap().unwrap();
    assert_eq!(status.code(), Some(130));
}
