//! `dunlin pull` against a hub and a pip that misbehave: a local HTTP server stands for the hub, a
//! script for Python.

mod server;
mod wheels;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use server::{Reply, Request, Server};
use sha2::{Digest, Sha256};

/// A cache of one test's own, and the command line on it.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("cache/models")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        command.arg("pull").args(args);
        for name in ["HF_TOKEN", "HF_ENDPOINT", "HF_HUB_DOWNLOAD_TIMEOUT", "DUNLIN_PYTHON"] {
            command.env_remove(name);
        }
        for name in
            ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
        {
            command.env_remove(name);
        }
        command.env("DUNLIN_CACHE", self.folder.path().join("cache"));
        command
    }

    fn pull(&self, server: &Server, args: &[&str]) -> Output {
        self.command(args).env("HF_ENDPOINT", &server.url).output().unwrap()
    }

    /// Files in the model folder whose name ends so.
    fn left(&self, suffix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.models().join("org--repo")).into_iter().flatten();
        let paths = entries.flatten().map(|e| e.path());
        paths.filter(|p| p.to_string_lossy().ends_with(suffix)).collect()
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes that are the same in every run and compress badly.
fn sample(length: usize) -> Vec<u8> {
    let mut state = 7u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(next).collect()
}

const FILE: &str = "/org/repo/resolve/main/m.gguf";

/// What the hub answers to HEAD for a large file.
fn head(body: &[u8]) -> Reply {
    Reply::ok(body)
        .with("x-linked-etag", format!("\"{}\"", sha256(body)))
        .with("x-linked-size", body.len().to_string())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The path that a successful run printed.
fn path_of(output: &Output) -> PathBuf {
    assert!(output.status.success(), "{}", stderr(output));
    Path::new(String::from_utf8_lossy(&output.stdout).trim_end()).to_path_buf()
}

/// Asserts that the run failed with every one of `words` in its message.
fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    assert!(output.stdout.is_empty(), "nothing on standard output but the result");
}

#[test]
fn a_file_comes_through_a_redirect_and_the_token_stays_home() {
    let body = sample(300_000);
    let stored = body.clone();
    let store = Server::start(move |_, r| Reply::ranged(r, &stored));
    let (address, linked) = (store.url.clone(), body.clone());
    let hub = Server::start(move |_, _| {
        let mut reply = head(&linked).with("location", format!("{address}/blob?signed=yes"));
        (reply.status, reply.body) = (302, Vec::new());
        reply
    });
    let world = World::new();
    let run = || {
        let mut command = world.command(&["hf:org/repo/m.gguf"]);
        command.env("HF_ENDPOINT", &hub.url).env("HF_TOKEN", "secret").output().unwrap()
    };
    let path = path_of(&run());
    assert_eq!(path, world.models().join("org--repo/m.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), body);
    assert!(hub.requests().iter().all(|r| r.authorization.as_deref() == Some("Bearer secret")));
    assert!(store.requests().iter().all(|r| r.authorization.is_none()), "not to other hosts");
    assert_eq!(path_of(&run()), path, "a second run finds it");
    assert_eq!(store.requests().len(), 1, "and fetches nothing");
    std::fs::write(&path, "spoilt").unwrap();
    assert_eq!(std::fs::read(path_of(&run())).unwrap(), body, "a spoilt file is fetched again");
}

#[test]
fn a_transfer_that_breaks_goes_on_where_it_stopped() {
    let body = sample(500_000);
    let sent = body.clone();
    let server = Server::start(move |n, r| match n {
        0 => head(&sent),
        1 => Reply { cut_after: Some(200_000), ..Reply::ranged(r, &sent) },
        2 => Reply::status(503),
        3 => Reply { cut_after: Some(100_000), ..Reply::ranged(r, &sent) },
        _ => Reply::ranged(r, &sent),
    });
    let world = World::new();
    let path = path_of(&world.pull(&server, &["hf:org/repo/m.gguf"]));
    assert_eq!(std::fs::read(path).unwrap(), body);
    let gets = server.gets(FILE);
    assert_eq!(gets, [None, Some(200_000), Some(200_000), Some(300_000)]);
    assert!(world.left(".part").is_empty());
}

#[test]
fn another_run_goes_on_where_the_last_one_gave_up() {
    let body = sample(400_000);
    let sent = body.clone();
    let server = Server::start(move |n, r| match n {
        0 | 2 => head(&sent),
        1 => Reply { cut_after: Some(150_000), ..Reply::ranged(r, &sent) },
        _ => Reply::ranged(r, &sent),
    });
    let world = World::new();
    let args = ["hf:org/repo/m.gguf", "--retries", "0"];
    let broken = world.pull(&server, &args);
    assert_fails(&broken, 1, &["150000 of 400000 bytes", "run the same command again"]);
    assert_eq!(world.left("m.gguf").len(), 0, "no half file where the model goes");
    let path = path_of(&world.pull(&server, &args));
    assert_eq!(std::fs::read(path).unwrap(), body);
    assert_eq!(server.gets(FILE), [None, Some(150_000)]);
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let body = sample(200_000);
    let sent = body.clone();
    let server = Server::start(move |n, _| match n {
        0 => head(&sent),
        1 => Reply { cut_after: Some(90_000), ..Reply::ok(&sent) },
        _ => Reply::ok(&sent),
    });
    let world = World::new();
    let path = path_of(&world.pull(&server, &["hf:org/repo/m.gguf"]));
    assert_eq!(std::fs::read(path).unwrap(), body);
}

#[test]
fn a_stalled_server_is_left_and_asked_again() {
    let body = sample(300_000);
    let sent = body.clone();
    let server = Server::start(move |n, r| match n {
        0 => head(&sent),
        1 => Reply { slow: Some(Duration::from_secs(20)), ..Reply::ranged(r, &sent) },
        _ => Reply::ranged(r, &sent),
    });
    let world = World::new();
    let mut command = world.command(&["hf:org/repo/m.gguf"]);
    command.env("HF_ENDPOINT", &server.url).env("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    assert_eq!(std::fs::read(path_of(&command.output().unwrap())).unwrap(), body);
}

#[test]
fn wrong_bytes_are_thrown_away() {
    let body = sample(100_000);
    let server = Server::start(move |_, r| {
        let mut wrong = body.clone();
        wrong[50_000] ^= 1;
        if r.method == "HEAD" { head(&body) } else { Reply::ranged(r, &wrong) }
    });
    let world = World::new();
    let output = world.pull(&server, &["hf:org/repo/m.gguf"]);
    assert_fails(&output, 1, &["m.gguf", "SHA-256", "thrown away"]);
    assert!(world.left(".part").is_empty() && world.left("m.gguf").is_empty());
}

#[test]
fn the_users_own_hash_counts() {
    let body = sample(1_000);
    let sent = body.clone();
    let server = Server::start(move |_, _| head(&sent));
    let world = World::new();
    let right = sha256(&body);
    let wrong = right.replace(&right[..1], if right.starts_with('0') { "1" } else { "0" });
    let output = world.pull(&server, &["hf:org/repo/m.gguf", "--sha256", &wrong]);
    assert_fails(&output, 1, &["SHA-256", &wrong]);
    path_of(&world.pull(&server, &["hf:org/repo/m.gguf", "--sha256", &right]));
}

#[test]
fn a_small_file_is_checked_by_its_git_hash() {
    // git hash-object of "abc".
    let tag = "\"f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f\"";
    for (content, right) in [("abc", true), ("abd", false)] {
        let server = Server::start(move |_, _| Reply::ok(content.as_bytes()).with("etag", tag));
        let world = World::new();
        let output = world.pull(&server, &["hf:org/repo/config.json"]);
        assert_eq!(output.status.success(), right, "{}", stderr(&output));
    }
}

#[test]
fn without_a_hash_the_size_is_checked_and_that_is_said() {
    let server = Server::start(|_, _| Reply::ok(b"abc").with("etag", "\"v1\""));
    let output = World::new().pull(&server, &["hf:org/repo/m.gguf"]);
    assert!(stderr(&output).contains("no hash"), "{}", stderr(&output));
    path_of(&output);
}

#[test]
fn a_file_that_changed_on_the_hub_is_not_joined_to_the_old_part() {
    let (old, new) = (sample(200_000), sample(250_000).split_off(50_000));
    let (first, second) = (old.clone(), new.clone());
    let server = Server::start(move |n, r| match n {
        0 => head(&first),
        1 => Reply { cut_after: Some(100_000), ..Reply::ranged(r, &first) },
        2 => head(&second),
        _ => Reply::ranged(r, &second),
    });
    let world = World::new();
    let args = ["hf:org/repo/m.gguf", "--retries", "0"];
    assert!(!world.pull(&server, &args).status.success());
    assert_eq!(std::fs::read(path_of(&world.pull(&server, &args))).unwrap(), new);
    assert_eq!(server.gets(FILE), [None, None]);
}

#[test]
fn refusals_say_what_to_do() {
    let refuse = |status: u16, token: Option<&str>| {
        let server = Server::start(move |_, _| Reply::status(status));
        let world = World::new();
        let mut command = world.command(&["hf:org/repo/m.gguf"]);
        command.env("HF_ENDPOINT", &server.url);
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        command.output().unwrap()
    };
    assert_fails(&refuse(404, None), 1, &["does not exist (404)", "/org/repo/", "HF_TOKEN"]);
    assert_fails(&refuse(401, None), 1, &["(401)", "set HF_TOKEN"]);
    assert_fails(&refuse(403, Some("t")), 1, &["(403)", "accept the model's terms"]);
    assert_fails(&refuse(418, None), 1, &["status 418"]);
}

#[test]
fn servers_that_make_no_sense() {
    type Answer = fn(usize, &Request) -> Reply;
    let cases: [(&str, Answer); 5] = [
        ("no entity tag", |_, _| Reply::ok(b"abc")),
        ("redirects", |_, _| Reply::status(302).with("location", "/again")),
        ("without a usable address", |_, _| Reply::status(302).with("location", "ftp://x/")),
        ("more bytes than the file has", |n, _| match n {
            0 => head(b"abc"),
            _ => Reply::ok(b"abcdef"),
        }),
        ("without saying which", |n, r| match n {
            0 => head(&sample(200_000)),
            1 => Reply { cut_after: Some(70_000), ..Reply::ranged(r, &sample(200_000)) },
            _ => Reply { status: 206, ..Reply::ok(b"abc") },
        }),
    ];
    for (word, answer) in cases {
        let server = Server::start(answer);
        let world = World::new();
        assert_fails(&world.pull(&server, &["hf:org/repo/m.gguf"]), 1, &["cannot be used", word]);
        assert!(world.left("m.gguf").is_empty());
    }
}

#[test]
fn a_hub_that_cannot_be_reached() {
    let world = World::new();
    let mut command = world.command(&["hf:org/repo/m.gguf"]);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = command.env("HF_ENDPOINT", format!("http://{port}")).output().unwrap();
    assert_fails(&output, 1, &["cannot reach http://127.0.0.1"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let body = sample(100_000);
    let sent = body.clone();
    let server =
        Server::start(move |n, r| if n == 0 { head(&sent) } else { Reply::ranged(r, &sent) });
    let world = World::new();
    // Everything written to /dev/full fails as on a full disk.
    let folder = world.models().join("org--repo");
    std::fs::create_dir_all(&folder).unwrap();
    let part = folder.join(format!(".m.gguf.{}.part", &sha256(&body)[..16]));
    std::os::unix::fs::symlink("/dev/full", part).unwrap();
    let output = world.pull(&server, &["hf:org/repo/m.gguf"]);
    assert_fails(&output, 1, &["cannot write", "make room", "DUNLIN_CACHE"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let server = Server::start(|_, _| head(b"abc"));
    let world = World::new();
    let file = world.folder.path().join("cache");
    std::fs::write(&file, "a file where the cache should be").unwrap();
    let output = world.pull(&server, &["hf:org/repo/m.gguf"]);
    assert_fails(&output, 1, &["cannot create the folder", "DUNLIN_CACHE"]);
}

#[test]
fn two_processes_share_one_transfer() {
    let body = sample(1_000_000);
    let sent = body.clone();
    let server = Server::start(move |_, r| {
        let reply = if r.method == "HEAD" { head(&sent) } else { Reply::ranged(r, &sent) };
        Reply { slow: Some(Duration::from_millis(50)), ..reply }
    });
    let world = World::new();
    let start = || {
        let mut command = world.command(&["hf:org/repo/m.gguf"]);
        command.env("HF_ENDPOINT", &server.url);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [start(), start()];
    for process in both {
        let path = path_of(&process.wait_with_output().unwrap());
        assert_eq!(std::fs::read(path).unwrap(), body);
    }
    assert_eq!(server.gets(FILE).len(), 1);
}

#[test]
fn a_repository_of_safetensors_comes_as_a_folder() {
    let server = Server::start(|_, r| {
        if r.path.starts_with("/api/models/org/repo/revision/main") {
            let names = ["config.json", "model.safetensors", "README.md", ".gitattributes"];
            let siblings: Vec<String> =
                names.iter().map(|n| format!("{{\"rfilename\": \"{n}\"}}")).collect();
            return Reply::ok(format!("{{\"siblings\": [{}]}}", siblings.join(",")).as_bytes());
        }
        head(r.path.as_bytes())
    });
    let world = World::new();
    let folder = path_of(&world.pull(&server, &["hf:org/repo"]));
    assert_eq!(folder, world.models().join("org--repo"));
    let weights = std::fs::read_to_string(folder.join("model.safetensors")).unwrap();
    assert_eq!(weights, "/org/repo/resolve/main/model.safetensors");
    assert!(folder.join("config.json").is_file() && !folder.join("README.md").exists());
}

#[test]
fn a_repository_cannot_write_outside_its_folder() {
    for name in ["../../evil.gguf", ".git/../../../evil.gguf", "/evil.gguf", "a/..\\\\evil.gguf"] {
        let listing = format!("{{\"siblings\": [{{\"rfilename\": \"{name}\", \"size\": 3}}]}}");
        let server = Server::start(move |_, _| Reply::ok(listing.as_bytes()));
        let world = World::new();
        assert_fails(&world.pull(&server, &["hf:org/repo"]), 2, &["no GGUF file"]);
        assert_eq!(server.requests().len(), 1, "{name} is not asked for");
    }
}

#[test]
fn a_repository_with_several_models_asks_which() {
    let server = Server::start(|_, _| {
        Reply::ok(
            br#"{"siblings": [{"rfilename": "m-Q4_0.gguf", "size": 3000000},
                                    {"rfilename": "m-Q8_0.gguf", "size": 5000000}]}"#,
        )
    });
    let output = World::new().pull(&server, &["hf:org/repo"]);
    assert_fails(&output, 2, &["several models", "/m-Q4_0.gguf (3.0 MB)"]);
}

#[test]
fn words_that_name_no_model() {
    let world = World::new();
    let run = |args: &[&str]| world.command(args).output().unwrap();
    assert_fails(&run(&["gpt-5"]), 2, &["\"gpt-5\"", "smollm2-135m", "hf:ORG/REPO"]);
    assert_fails(&run(&["hf:org"]), 2, &["hf:ORG/REPO"]);
    assert_fails(&run(&["hf:org/repo/../../x"]), 2, &["no plain path"]);
}
