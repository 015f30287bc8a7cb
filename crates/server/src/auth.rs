//! Who may call: API keys, and the origins of web pages.

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{error::ApiError, web};

/// Paths that answer without a key, besides the page: probes have none, and what they tell is no
/// secret.
const OPEN_PATHS: [&str; 5] = ["/health", "/ready", "/metrics", "/live", "/api/version"];

/// The keys that open the server, kept as hashes.
#[derive(Debug)]
pub struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// These keys; none opens the server to everybody.
    pub fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| hash(key.as_bytes())).collect())
    }

    /// Checks that a request brings a key, as `Authorization: Bearer` or as `x-api-key`. The time
    /// it takes depends on the length of what was brought, and on nothing else.
    ///
    /// # Errors
    /// 401 without a right one.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() || OPEN_PATHS.contains(&path) || web::is_page(path) {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        let mut known = subtle::Choice::from(0);
        for given in [bearer, plain].into_iter().flatten() {
            let given = hash(given.trim_ascii());
            for key in &self.0 {
                known |= key.ct_eq(&given);
            }
        }
        if bool::from(known) {
            return Ok(());
        }
        let message = match (bearer, plain) {
            (None, None) => "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            _ => "the API key is not known",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Whether a web page of this origin may call. Browsers send some requests without asking first, so
/// an origin that is not allowed is refused here, and not by withheld headers alone.
///
/// # Errors
/// 403 for an origin that is neither allowed nor the server's own.
pub fn check_origin(allowed: &[String], headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = origin.split_once("://").is_some_and(|(_, host)| Some(host) == own);
    if is_own || allowed.iter().any(|a| a == "*" || a == origin) {
        return Ok(());
    }
    let message = "web pages of this origin may not call; the server's CORS setting allows them";
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn one_right_key_is_enough() {
        let keys = Keys::new(&["alpha".into(), "beta".into()]);
        for (given, right) in [
            (&[("authorization", "Bearer alpha")][..], true),
            (&[("authorization", "bearer beta")], true),
            (&[("x-api-key", "beta")], true),
            (&[("authorization", "Bearer wrong"), ("x-api-key", "alpha")], true),
            (&[("authorization", "Bearer alph")], false),
            (&[("authorization", "Bearer alphaa")], false),
            (&[("authorization", "Basic alpha")], false),
            (&[("authorization", "alpha")], false),
            (&[("x-api-key", "")], false),
            (&[], false),
        ] {
            let result = keys.check("/v1/models", &headers(given));
            assert_eq!(result.is_ok(), right, "{given:?}");
            if let Err(error) = result {
                assert_eq!(error.status, StatusCode::UNAUTHORIZED);
                assert!(!error.message.contains("alph"), "{}", error.message);
            }
        }
        keys.check("/health", &headers(&[])).unwrap();
        Keys::new(&[]).check("/v1/models", &headers(&[])).unwrap();
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let page = |origin: &str| headers(&[("origin", origin), ("host", "localhost:8080")]);
        check_origin(&[], &headers(&[("host", "localhost:8080")])).unwrap();
        check_origin(&[], &page("http://localhost:8080")).unwrap();
        check_origin(&["*".into()], &page("https://evil.example")).unwrap();
        check_origin(&["https://good.example".into()], &page("https://good.example")).unwrap();
        for origin in
            ["https://evil.example", "http://localhost:80", "null", "http://x.localhost:8080"]
        {
            let error = check_origin(&["https://good.example".into()], &page(origin)).unwrap_err();
            assert_eq!(error.status, StatusCode::FORBIDDEN, "{origin}");
        }
    }
}
