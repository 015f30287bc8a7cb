//! Who may call: API keys, and the origins of web pages.

use axum::http::{HeaderMap, StatusCode, header};
use dunlin_kvcache::TenantId;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use crate::{config::Config, error::ApiError, web};

/// Paths that answer without a key, besides the page: probes have none, and what they tell is no
/// secret.
const OPEN_PATHS: [&str; 5] = ["/health", "/ready", "/metrics", "/live", "/api/version"];

/// The keys that open the server, kept as hashes, and whose they are.
#[derive(Debug)]
pub struct Keys(Vec<([u8; 32], u32)>);

impl Keys {
    /// Keys of a server; none opens it to everybody.
    pub fn new(config: &Config) -> Self {
        let own = config.api_keys.iter().map(|key| (hash_key(key.as_bytes()), 0));
        let tenants = (1..).zip(&config.tenants);
        let of = tenants
            .flat_map(|(number, tenant)| tenant.key_hashes.iter().map(move |&hash| (hash, number)));
        Self(own.chain(of).collect())
    }

    /// Checks that a request brings a key, as `Authorization: Bearer` or as `x-api-key`, and says
    /// whose it is. The time it takes depends on the length of what was brought, and on nothing
    /// else.
    ///
    /// # Errors
    /// 401 without a right one.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> Result<TenantId, ApiError> {
        if self.0.is_empty() || OPEN_PATHS.contains(&path) || web::is_page(path) {
            return Ok(TenantId(0));
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        let (mut known, mut tenant) = (subtle::Choice::from(0), 0);
        for given in [bearer, plain].into_iter().flatten() {
            let given = hash_key(given.trim_ascii());
            for (key, whose) in &self.0 {
                let same = key.ct_eq(&given);
                tenant.conditional_assign(whose, same);
                known |= same;
            }
        }
        if bool::from(known) {
            return Ok(TenantId(tenant));
        }
        let message = match (bearer, plain) {
            (None, None) => "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            _ => "the API key is not known",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
    }
}

/// The hash by which a key is known.
pub fn hash_key(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Whether a web page of this origin may call. Browsers send some requests without asking first, so
/// an origin that is not allowed is refused here, and not by withheld headers alone.
///
/// The server's own origin is the one that the request was sent to. A page elsewhere can look like that:
/// whoever owns a name can have it point here once its page is open (DNS rebinding). So an own
/// origin must be one that this cannot be done with.
///
/// # Errors
/// 403 for an origin that is neither allowed nor the server's own.
pub fn check_origin(allowed: &[String], headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = origin
        .split_once("://")
        .is_some_and(|(scheme, host)| Some(host) == own && (scheme == "https" || is_local(host)));
    if is_own || allowed.iter().any(|a| a == "*" || a == origin) {
        return Ok(());
    }
    let message = "web pages of this origin may not call; the server's CORS setting allows them";
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

/// Whether a host (and port) is an address, or a name that no public name server answers for. Names
/// elsewhere are safe where the server shows a certificate for them.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    if bare.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let local = [".localhost", ".local", ".internal", ".home.arpa"];
    !name.is_empty() && (!name.contains('.') || local.iter().any(|end| name.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tenant;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn one_right_key_is_enough() {
        let keys = Keys::new(&Config {
            api_keys: vec!["alpha".into(), "beta".into()],
            ..Config::default()
        });
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
        Keys::new(&Config::default()).check("/v1/models", &headers(&[])).unwrap();
    }

    #[test]
    fn pages_of_names_that_may_be_pointed_here_are_not_the_servers_own() {
        for (origin, host, allowed) in [
            ("http://localhost:8080", "localhost:8080", true),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://[::1]:8080", "[::1]:8080", true),
            ("http://[::1]", "[::1]", true),
            ("http://box", "box", true),
            ("http://box.local:80", "box.local:80", true),
            ("http://Box.Home.Arpa.", "Box.Home.Arpa.", true),
            ("https://chat.example", "chat.example", true),
            ("http://listed.example", "listed.example", true),
            ("http://evil.example:8080", "evil.example:8080", false),
            ("http://evil.example.", "evil.example.", false),
            ("http://evil.local.example", "evil.local.example", false),
            ("http://localhost:8080", "localhost:8081", false),
            ("http://evil.example", "localhost", false),
            ("null", "localhost", false),
            ("http://", "", false),
        ] {
            let given = headers(&[("origin", origin), ("host", host)]);
            let result = check_origin(&["http://listed.example".into()], &given);
            assert_eq!(result.is_ok(), allowed, "{origin} {host}");
        }
    }

    #[test]
    fn keys_say_whose_they_are() {
        let tenant = |name: &str, keys: &[&str]| Tenant {
            name: name.into(),
            key_hashes: keys.iter().map(|key| hash_key(key.as_bytes())).collect(),
            max_requests: None,
        };
        let keys = Keys::new(&Config {
            api_keys: vec!["own".into()],
            tenants: vec![tenant("a", &["a1", "a2"]), tenant("b", &["b1"])],
            ..Config::default()
        });
        for (key, whose) in [("own", Some(0)), ("a1", Some(1)), ("a2", Some(1)), ("b1", Some(2))] {
            let found = keys.check("/v1/models", &headers(&[("x-api-key", key)])).ok();
            assert_eq!(found.map(|tenant| tenant.0), whose, "{key}");
        }
        assert!(keys.check("/v1/models", &headers(&[("x-api-key", "c")])).is_err());
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
