//! Requests to the hub: redirects, the access token, and statuses as errors.
//!
//! Redirects are followed here and not by the client, since the headers that tell a file's hash
//! come before the last of them, and since the token must not go to other hosts.

use std::time::Duration;

use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use super::error::PullError;

const MAX_REDIRECTS: usize = 10;

/// Requests with the user's settings.
pub struct Client {
    agent: Agent,
    /// Where the hub is: scheme, host and port, without a slash at the end.
    pub endpoint: String,
    token: Option<String>,
}

/// A response and the headers of every response on the way to it, first to last.
pub struct Answer {
    /// The last response; a redirect only where it was not followed.
    pub response: Response<Body>,
    /// Headers, the last response's too.
    pub headers: Vec<HeaderMap>,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The headers alone, as far as the hub itself gives them.
    Head,
    /// Everything.
    Get,
    /// Everything from this byte.
    GetFrom(u64),
}

impl Answer {
    /// The first value of a header on the way.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|h| h.get(name)?.to_str().ok())
    }

    /// The header's value in the last response.
    pub fn last_header(&self, name: &str) -> Option<&str> {
        self.headers.last()?.get(name)?.to_str().ok()
    }
}

impl Client {
    /// A client with `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_DOWNLOAD_TIMEOUT` (seconds without a
    /// byte; 30 unless set) from the environment.
    pub fn from_environment() -> Self {
        let text = |name: &str| {
            let value = std::env::var(name).ok()?;
            let value = value.trim();
            (!value.is_empty()).then(|| value.to_string())
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let stall = text("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|s| s.parse().ok()).unwrap_or(30);
        let stall = Duration::from_secs(stall);
        let agent = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .accept_encoding("identity")
            .user_agent(concat!("dunlin/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .build()
            .into();
        Self { agent, endpoint: endpoint.trim_end_matches('/').into(), token: text("HF_TOKEN") }
    }

    /// Asks, following redirects; for the headers alone, only while they stay on the hub's host.
    pub fn ask(&self, url: &str, ask: Ask) -> Result<Answer, PullError> {
        let mut at = url.to_string();
        let mut headers = Vec::new();
        for _ in 0..=MAX_REDIRECTS {
            let response = self
                .send(&at, ask)
                .map_err(|e| PullError::Unreachable { url: at.clone(), cause: e.to_string() })?;
            headers.push(response.headers().clone());
            if !response.status().is_redirection() {
                let answer = Answer { response, headers };
                return self.judge(&at, answer);
            }
            let location = response.headers().get("location").and_then(|l| l.to_str().ok());
            let next = location
                .and_then(|l| join(&at, l))
                .ok_or_else(|| bad_answer(&at, "a redirect without a usable address".into()))?;
            if ask == Ask::Head && host(&next) != host(&self.endpoint) {
                return Ok(Answer { response, headers });
            }
            at = next;
        }
        Err(bad_answer(url, format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send(&self, url: &str, ask: Ask) -> Result<Response<Body>, ureq::Error> {
        let mut request = match ask {
            Ask::Head => self.agent.head(url),
            Ask::Get | Ask::GetFrom(_) => self.agent.get(url),
        };
        if let Ask::GetFrom(from) = ask {
            request = request.header("range", format!("bytes={from}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| host(url) == host(&self.endpoint)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call()
    }

    fn judge(&self, url: &str, answer: Answer) -> Result<Answer, PullError> {
        let url = url.split('?').next().unwrap_or_default().to_string();
        match answer.response.status().as_u16() {
            200..=299 | 416 => Ok(answer),
            404 => Err(PullError::NotFound { url }),
            status @ (401 | 403) => {
                Err(PullError::NotAllowed { url, status, with_token: self.token.is_some() })
            }
            status => Err(PullError::Status { url, status }),
        }
    }
}

/// An answer that makes no sense.
pub fn bad_answer(url: &str, problem: String) -> PullError {
    PullError::BadAnswer { url: url.into(), problem }
}

/// Scheme, host and port of an address.
fn host(url: &str) -> Option<&str> {
    let start = url.find("://")? + 3;
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |i| start + i);
    Some(&url[..end])
}

/// The address that `location` means on the page `base`.
fn join(base: &str, location: &str) -> Option<String> {
    if location.starts_with("https://") || location.starts_with("http://") {
        return Some(location.into());
    }
    if location.starts_with("//") {
        let scheme = base.split("//").next()?;
        return Some(format!("{scheme}{location}"));
    }
    location.starts_with('/').then(|| Some(format!("{}{location}", host(base)?)))?
}

/// A path with everything but plain characters and slashes escaped.
pub fn escape(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let page = "https://hub.example:8443/a/b?c=d";
        assert_eq!(host(page), Some("https://hub.example:8443"));
        assert_eq!(join(page, "/x?y").as_deref(), Some("https://hub.example:8443/x?y"));
        assert_eq!(join(page, "//cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        assert_eq!(join(page, "http://cdn.example/").as_deref(), Some("http://cdn.example/"));
        assert_eq!(join(page, "file:///etc/passwd"), None);
        assert_eq!(escape("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
    }

    #[test]
    fn a_longer_host_name_is_another_host() {
        assert_ne!(host("https://hub.example.evil/x"), host("https://hub.example"));
        assert_ne!(host("https://hub.example@evil/x"), host("https://hub.example"));
        assert_ne!(host("http://hub.example/x"), host("https://hub.example"), "no token in clear");
    }
}
