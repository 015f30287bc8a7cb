//! One file over HTTP: resumed where it broke off, hashed as it arrives, placed when it is whole.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use super::cache::{Lock, beside, make_parent, place};
use super::checksum::{Expected, Running};
use super::error::PullError;
use super::http::{Answer, Ask, Client, bad_answer};
use super::progress::Progress;

/// What the hub says of a file before it is fetched.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Its address.
    pub url: String,
    /// Its name for messages.
    pub name: String,
    /// Its size, where the hub says it.
    pub bytes: Option<u64>,
    /// Its entity tag: another one is another file.
    pub tag: String,
    /// The hash that the tag tells, or the user.
    pub expected: Option<Expected>,
}

/// What is remembered of a fetched file, beside it.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Remembered {
    url: String,
    tag: String,
    bytes: u64,
}

impl Remote {
    /// Asks the hub about a file.
    pub fn ask(client: &Client, url: &str, name: &str) -> Result<Self, PullError> {
        let answer = client.ask(url, Ask::Head)?;
        // Of a redirect to the store only the headers named for that tell about the file itself.
        let here = answer.response.status().is_success();
        let own = |name: &str| if here { answer.last_header(name) } else { None };
        let tag = answer.header("x-linked-etag").or_else(|| own("etag"));
        let tag = tag.map(|t| t.trim_start_matches("W/").trim_matches('"').to_string());
        let bytes = answer.header("x-linked-size").or_else(|| own("content-length"));
        let Some(tag) = tag.filter(|t| !t.is_empty()) else {
            return Err(bad_answer(url, "no entity tag, so the file cannot be checked".into()));
        };
        Ok(Self {
            url: url.into(),
            name: name.into(),
            bytes: bytes.and_then(|b| b.parse().ok()),
            expected: Expected::from_etag(&tag),
            tag,
        })
    }

    /// Fetches the file to `target` unless it is there, unchanged; its size and whether it was.
    pub fn fetch(
        &self,
        client: &Client,
        target: &Path,
        retries: u32,
    ) -> Result<(u64, bool), PullError> {
        make_parent(target)?;
        let _lock = Lock::acquire(target)?;
        if let Some(bytes) = self.unchanged(target)? {
            return Ok((bytes, true));
        }
        // The tag is in the name, so that a changed file is never joined to the old one's part.
        let short: String = self.tag.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        let part = beside(target, &format!("{short}.part"));
        let bytes = Transfer::begin(self, client, &part, retries)?.run()?;
        place(&part, target)?;
        self.remember(target, bytes)?;
        Ok((bytes, false))
    }

    fn unchanged(&self, target: &Path) -> Result<Option<u64>, PullError> {
        let Ok(metadata) = fs::metadata(target) else { return Ok(None) };
        let remembered: Option<Remembered> = fs::read(beside(target, "json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let same =
            Remembered { url: self.url.clone(), tag: self.tag.clone(), bytes: metadata.len() };
        if remembered != Some(same) {
            return Ok(None);
        }
        if let Some(expected) = &self.expected
            && let Err(e) = expected.check(target)
        {
            crate::note!("{e}");
            return Ok(None);
        }
        Ok(Some(metadata.len()))
    }

    fn remember(&self, target: &Path, bytes: u64) -> Result<(), PullError> {
        let path = beside(target, "json");
        let remembered = Remembered { url: self.url.clone(), tag: self.tag.clone(), bytes };
        let text = serde_json::to_string(&remembered).unwrap_or_default();
        fs::write(&path, text).map_err(PullError::io("write", &path))
    }
}

/// Why an attempt ended before the file was whole.
enum Ended {
    /// Worth another attempt.
    Broke(String),
    /// Not worth one.
    Failed(PullError),
}

impl From<PullError> for Ended {
    fn from(e: PullError) -> Self {
        match e {
            PullError::Unreachable { cause, .. } => Self::Broke(cause),
            PullError::Status { status, .. } if status == 429 || status >= 500 => {
                Self::Broke(format!("the server answered with status {status}"))
            }
            e => Self::Failed(e),
        }
    }
}

struct Transfer<'a> {
    remote: &'a Remote,
    client: &'a Client,
    part: &'a Path,
    retries: u32,
    file: File,
    have: u64,
    progress: Progress,
    running: Option<Running>,
}

impl<'a> Transfer<'a> {
    fn begin(
        remote: &'a Remote,
        client: &'a Client,
        part: &'a Path,
        retries: u32,
    ) -> Result<Self, PullError> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(part)
            .map_err(PullError::io("create", part))?;
        let have = file.metadata().map_err(PullError::io("read", part))?.len();
        let progress = Progress::start(&remote.name, have, remote.bytes);
        // A git hash begins with the size, which must be known; large files have SHA-256.
        let running = match (&remote.expected, remote.bytes) {
            (Some(expected @ Expected::Sha256(_)), _) => Some(Running::new(expected, 0)),
            (Some(expected), Some(bytes)) => Some(Running::new(expected, bytes)),
            _ => None,
        };
        Ok(Self { remote, client, part, retries, file, have, progress, running })
    }

    /// Attempts until the file is whole and right; its size.
    fn run(mut self) -> Result<u64, PullError> {
        let mut breaks = 0;
        loop {
            let before = self.have;
            let cause = match self.attempt() {
                Ok(()) => break,
                Err(Ended::Failed(e)) => return Err(e),
                Err(Ended::Broke(cause)) => cause,
            };
            breaks = if self.have > before { 1 } else { breaks + 1 };
            if breaks > self.retries {
                return Err(PullError::Interrupted {
                    file: self.remote.name.clone(),
                    got: self.have,
                    expected: self.remote.bytes,
                    cause,
                });
            }
            self.progress.say(&format!("{}: {cause}; going on", self.remote.name));
            std::thread::sleep(Duration::from_millis(250 << breaks.min(6)));
        }
        self.check()
    }

    /// One request, from where the file ends.
    fn attempt(&mut self) -> Result<(), Ended> {
        if let Some(bytes) = self.remote.bytes {
            if self.have > bytes {
                self.restart()?;
            }
            if self.have == bytes && bytes > 0 {
                return Ok(());
            }
        }
        let ask = if self.have > 0 { Ask::GetFrom(self.have) } else { Ask::Get };
        let mut answer = self.client.ask(&self.remote.url, ask)?;
        let total = self.place_of(&answer)?;
        if let Some(running) = &mut self.running {
            running.catch_up(&mut self.file, self.have).map_err(|e| self.io_error(e))?;
        }
        self.file.seek(SeekFrom::Start(self.have)).map_err(|e| self.io_error(e))?;
        let mut body = answer.response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = body.read(&mut buffer).map_err(|e| Ended::Broke(e.to_string()))?;
            if n == 0 {
                break;
            }
            self.append(&buffer[..n], total)?;
        }
        match total {
            Some(total) if self.have < total => {
                Err(Ended::Broke("the server closed the connection".into()))
            }
            _ => Ok(()),
        }
    }

    /// Sets `have` to where the answer's bytes begin; the whole file's size.
    fn place_of(&mut self, answer: &Answer) -> Result<Option<u64>, Ended> {
        let status = answer.response.status().as_u16();
        if status == 416 {
            self.restart()?;
            return Err(Ended::Broke("the server has nothing from there on".into()));
        }
        if status == 206 {
            let range = answer.last_header("content-range").and_then(content_range);
            let Some((from, total)) = range else {
                return Err(self.unusable("a part of the file without saying which"));
            };
            if from != self.have || self.remote.bytes.is_some_and(|b| b != total) {
                return Err(self.unusable("another part of the file, or of another file"));
            }
            return Ok(Some(total));
        }
        if self.have > 0 {
            self.restart()?;
        }
        Ok(self.remote.bytes.or_else(|| answer.response.body().content_length()))
    }

    fn append(&mut self, bytes: &[u8], total: Option<u64>) -> Result<(), Ended> {
        if total.is_some_and(|t| self.have + bytes.len() as u64 > t) {
            return Err(self.unusable("more bytes than the file has"));
        }
        self.file.write_all(bytes).map_err(|e| self.io_error(e))?;
        self.have += bytes.len() as u64;
        if let Some(running) = &mut self.running {
            running.update(bytes);
        }
        self.progress.at(self.have);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Ended> {
        self.have = 0;
        self.file.set_len(0).map_err(|e| self.io_error(e))
    }

    fn unusable(&self, problem: &str) -> Ended {
        Ended::Failed(bad_answer(&self.remote.url, problem.into()))
    }

    fn io_error(&self, source: std::io::Error) -> Ended {
        Ended::Failed(PullError::io("write", self.part)(source))
    }

    /// Compares the whole file's hash; a wrong file is removed.
    fn check(mut self) -> Result<u64, PullError> {
        let Some(mut running) = self.running.take() else {
            self.progress.say(&format!(
                "{}: the server gives no hash; only the size was checked",
                self.remote.name
            ));
            return Ok(self.have);
        };
        running.catch_up(&mut self.file, self.have).map_err(PullError::io("read", self.part))?;
        if let Err(e) = running.finish(Path::new(&self.remote.name)) {
            fs::remove_file(self.part).map_err(PullError::io("remove", self.part))?;
            return Err(e);
        }
        Ok(self.have)
    }
}

/// Start and total of `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (from, _) = range.split_once('-')?;
    Some((from.trim().parse().ok()?, total.trim().parse().ok()?))
}
