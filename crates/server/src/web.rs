//! The web page: chat and a live view, in files that are part of the binary.
//!
//! The page loads nothing from elsewhere, and its policy forbids the browser to: scripts and styles
//! are these files alone, and calls go to this server alone. What models write is made into elements
//! by `web/markdown.js` and never read as HTML.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    response::IntoResponse,
    routing::get,
};

use crate::app::App;

/// The page's files: path, content type, content.
const FILES: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("web/index.html")),
    ("/web/style.css", "text/css; charset=utf-8", include_str!("web/style.css")),
    ("/web/icon.svg", "image/svg+xml", include_str!("web/icon.svg")),
    ("/web/app.js", SCRIPT, include_str!("web/app.js")),
    ("/web/api.js", SCRIPT, include_str!("web/api.js")),
    ("/web/chat.js", SCRIPT, include_str!("web/chat.js")),
    ("/web/live.js", SCRIPT, include_str!("web/live.js")),
    ("/web/markdown.js", SCRIPT, include_str!("web/markdown.js")),
    ("/web/store.js", SCRIPT, include_str!("web/store.js")),
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What the page may load and where it may be shown.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Whether a path is one of the page's, which need no key: they hold no secret.
pub fn is_page(path: &str) -> bool {
    FILES.iter().any(|file| file.0 == path)
}

/// The routes of the page.
pub fn routes() -> Router<Arc<App>> {
    let mut router = Router::new();
    for (path, kind, content) in FILES {
        let answer = move || async move {
            let headers = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
                (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
                // A newer binary has newer files.
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), content)
                .into_response()
        };
        router = router.route(path, get(answer));
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_needs_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|file| file.2.len()).sum();
        assert!(bytes < 200_000, "{bytes} bytes");
        for (path, _, content) in FILES {
            // The name space of SVG is a name and not an address.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for (at, _) in content.match_indices("://") {
                // The renderer knows links by their beginning.
                let is_pattern = path == "/web/markdown.js" && content[..at].ends_with("https?");
                assert!(is_pattern, "{path}: {}", &content[at.saturating_sub(20)..at + 3]);
            }
            // Nothing is read as HTML, nor are there scripts or styles that the policy forbids.
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!content.contains(word), "{path}: {word}");
            }
            assert!(!content.contains("style=\"") && !content.contains("<style"), "{path}");
            assert!(!content.contains(" onclick"), "{path}");
        }
    }

    #[test]
    fn every_file_that_is_named_is_there() {
        for (path, _, content) in FILES {
            for mark in ["\"/web/", "\"./"] {
                for (at, _) in content.match_indices(mark) {
                    let rest = &content[at + mark.len()..];
                    let name = format!("/web/{}", &rest[..rest.find('"').unwrap()]);
                    assert!(is_page(&name), "{path} names {name}");
                }
            }
        }
    }
}
