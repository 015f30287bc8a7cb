//! Probes, metrics, keys and origins.

use dunlin_server::{Config, service::Health};
use serde_json::json;

use crate::fake::Server;

const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;

#[test]
fn health_is_the_engines() {
    let server = Server::new();
    for (health, status) in
        [(Health::Loading, 503), (Health::Ready, 200), (Health::Dead, 503), (Health::Damaged, 503)]
    {
        *server.fake.health.lock().unwrap() = health;
        assert_eq!(server.get("/health").status, status, "{health:?}");
        assert_eq!(server.get("/ready").status, status, "{health:?}");
    }
}

#[test]
fn metrics_have_the_names_that_routers_read() {
    let server = Server::new();
    for _ in 0..2 {
        server.post(CHAT, BODY);
    }
    server.get("/nothing/at/all");
    server.fake.wait_for_live(0);
    let answer = server.get("/metrics");
    let content_type = answer.header("content-type").unwrap();
    assert!(content_type.starts_with("application/openmetrics-text"), "{content_type}");
    for line in [
        "# TYPE vllm:num_requests_waiting gauge",
        "# TYPE vllm:prompt_tokens counter",
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "vllm:num_requests_waiting{model_name=\"tiny\"} 2.0",
        "vllm:num_requests_running{model_name=\"tiny\"} 0.0",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.25",
        "vllm:cache_config_info{model_name=\"tiny\",block_size=\"16\",num_gpu_blocks=\"40\",num_cpu_blocks=\"0\"} 1",
        "vllm:num_preemptions_total{model_name=\"tiny\"} 5",
        "vllm:prompt_tokens_total{model_name=\"tiny\"} 14",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 6",
        "vllm:prefix_cache_queries_total{model_name=\"tiny\"} 14",
        "vllm:prefix_cache_hits_total{model_name=\"tiny\"} 6",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"} 2",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 2",
        "vllm:time_per_output_token_seconds_count{model_name=\"tiny\"} 2",
        "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 2",
        "dunlin:http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 2",
        "dunlin:http_responses_total{route=\"other\",status=\"404\"} 1",
        "dunlin:requests_in_flight 0",
        "dunlin:steps_total 11",
        "dunlin:computed_tokens_total 60",
        "dunlin:step_seconds_total 1.5",
        "dunlin:energy_joules_total{source=\"model\"} 2.5",
        "# TYPE process_resident_memory_bytes gauge",
        "# TYPE process_cpu_seconds counter",
        "# EOF",
    ] {
        assert!(answer.text().lines().any(|l| l == line), "{line}\nis not in\n{}", answer.text());
    }
}

#[test]
fn the_live_view_learns_what_goes_on() {
    let server = Server::new();
    assert_eq!(server.get("/live").json()["ttft"], serde_json::Value::Null);
    for _ in 0..2 {
        server.post(CHAT, BODY);
    }
    let live = server.get("/live").json();
    assert_eq!((&live["model"], &live["waiting"]), (&"tiny".into(), &2.into()));
    assert_eq!((&live["kv_blocks_used"], &live["joules"]), (&10.into(), &2.5.into()));
    assert_eq!((&live["output_tokens"], &live["steps"]), (&6.into(), &11.into()));
    assert_eq!(live["recent_prompt_tokens"], 14);
    assert_eq!(live["recent_cached_tokens"], 6);
    assert_eq!((&live["ttft"]["count"], &live["tpot"]["count"]), (&2.into(), &2.into()));
    server.fake.models.lock().unwrap().clear();
    assert_eq!(server.get("/live").status, 503);
}

/// The page opens without a key, which it asks for itself, and may load nothing from elsewhere.
#[test]
fn the_page_is_served_to_everybody() {
    let server = Server::with(Config { api_keys: vec!["k".into()], ..Config::default() });
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    for rest in page.text().split("\"/web/").skip(1) {
        let path = format!("/web/{}", rest.split('"').next().unwrap());
        assert_eq!(server.get(&path).status, 200, "{path}");
    }
    assert_eq!(server.get("/web/other.js").status, 401);
    assert_eq!(server.post("/", "{}").status, 405);
}

#[test]
fn routers_learn_what_they_ask() {
    let server = Server::new();
    let info = server.get("/server_info").json();
    assert_eq!(info["max_total_num_tokens"], 640);
    assert_eq!(info["served_model_name"], "tiny");
    let model = server.get("/model_info").json();
    assert_eq!(model["model_path"], "tiny");
    assert_eq!(model["is_generation"], true);
    server.fake.models.lock().unwrap().clear();
    assert_eq!(server.get("/server_info").status, 503);
}

#[test]
fn keys_open_all_protocols() {
    let keys = vec!["sk-alpha".to_string(), "sk-beta".to_string()];
    let server = Server::with(Config { api_keys: keys, ..Config::default() });
    for path in ["/health", "/ready", "/metrics", "/api/version"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let refused = server.post(CHAT, BODY);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    let refused = server.send("POST", "/v1/messages", &["x-api-key: sk-alphb"], b"{}");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert!(!refused.text().contains("sk-"));
    assert_eq!(
        server.get("/api/tags").json(),
        json!({"error": "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"})
    );
    // Paths that do not exist tell nothing either.
    assert_eq!(server.get("/nothing").status, 401);
    assert!(server.fake.seen.lock().unwrap().is_empty());
    for header in ["Authorization: Bearer sk-beta", "x-api-key: sk-alpha"] {
        assert_eq!(server.send("POST", CHAT, &[header], BODY.as_bytes()).status, 200, "{header}");
    }
}

#[test]
fn web_pages_call_where_they_are_allowed() {
    let allowed = vec!["https://good.example".to_string()];
    let server = Server::with(Config { cors_origins: allowed, ..Config::default() });
    let send = |method, origin: &str| {
        let origin = format!("Origin: {origin}");
        let headers = [
            &*origin,
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization,content-type",
        ];
        server.send(method, CHAT, &headers, if method == "POST" { BODY.as_bytes() } else { b"" })
    };
    let preflight = send("OPTIONS", "https://good.example");
    assert_eq!(preflight.status, 200);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://good.example"));
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("authorization,content-type")
    );
    let answer = send("POST", "https://good.example");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://good.example"));
    assert_eq!(send("OPTIONS", "https://evil.example").header("access-control-allow-origin"), None);
    let evil = send("POST", "https://evil.example");
    assert_eq!(evil.status, 403);
    assert_eq!(server.fake.seen.lock().unwrap().len(), 1);
    // The page that this server serves itself.
    assert_eq!(send("POST", "http://localhost").status, 200);
}
