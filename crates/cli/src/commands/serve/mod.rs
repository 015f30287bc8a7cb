//! `dunlin serve`: a model over HTTP.

mod logs;
mod tenants;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use dunlin_engine::{DrafterKind, Speculate};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::Chunking;
use dunlin_server::{
    App, Config, Ended, Identity, Tenant, Tls, asked_to_stop,
    engine::{EngineService, SessionSettings, Speculation},
    models::{Entry, Limits, ManyModels},
    service::{ModelInfo, Service, ServiceError},
};
use dunlin_tensor::Backend;

use crate::{
    engine_args::EngineArgs,
    load,
    model_args::ModelArgs,
    note,
    outcome::unusable,
};

/// Serve a model over HTTP, in the protocols of OpenAI, Anthropic and Ollama
///
/// /v1/chat/completions, /v1/completions, /v1/models; /v1/messages; /api/chat, /api/generate,
/// /api/tags, /api/show, /api/ps; /tokenize, /detokenize, /apply-template; /health, /ready,
/// /metrics; /openapi.json describes them all. SIGTERM or Ctrl-C lets requests under way end.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The address to listen on; 0.0.0.0 is all of this machine's
    #[arg(long, env = "DUNLIN_HOST", default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,

    /// The port to listen on; 0 is any that is free
    #[arg(long, env = "DUNLIN_PORT", default_value_t = 8080)]
    port: u16,

    /// A key that requests must bring, as `Authorization: Bearer KEY` or `x-api-key: KEY`. May be
    /// given many times; any of them opens
    #[arg(long, env = "DUNLIN_API_KEY", value_name = "KEY", value_delimiter = ',')]
    #[arg(hide_env_values = true)]
    api_key: Vec<String>,

    /// A file with such keys, one a line
    #[arg(long, env = "DUNLIN_API_KEY_FILE", value_name = "PATH")]
    api_key_file: Option<PathBuf>,

    /// The model's name in requests [default: its file's, without the extension]
    #[arg(long, visible_alias = "served-model-name", env = "DUNLIN_ALIAS", value_name = "NAME")]
    alias: Option<String>,

    /// A file with a chat template (Jinja) to use instead of the model's
    #[arg(long, value_name = "PATH", env = "DUNLIN_CHAT_TEMPLATE")]
    chat_template: Option<PathBuf>,

    /// How many full contexts the KV memory holds: requests that run at once, or more where they are
    /// shorter
    #[arg(long, env = "DUNLIN_PARALLEL", default_value_t = 8, value_name = "N")]
    parallel: usize,

    /// The most requests that generate or wait to; more are answered 429
    #[arg(long, env = "DUNLIN_MAX_REQUESTS", default_value_t = 512, value_name = "N")]
    max_requests: usize,

    /// The most connections at once
    #[arg(long, env = "DUNLIN_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    max_connections: usize,

    /// The most bytes of a request's body
    #[arg(long, env = "DUNLIN_MAX_BODY_BYTES", default_value_t = 16 << 20, value_name = "BYTES")]
    max_body_bytes: usize,

    /// An origin whose web pages may call, * for all. May be given many times
    #[arg(long, env = "DUNLIN_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,

    /// Seconds that an answer may take; 0 is no limit
    #[arg(long, visible_alias = "timeout", env = "DUNLIN_REQUEST_TIMEOUT", default_value_t = 0)]
    #[arg(value_name = "SECONDS")]
    request_timeout: u64,

    /// Seconds that requests under way may take when the server is asked to stop
    #[arg(long, env = "DUNLIN_DRAIN_TIMEOUT", default_value_t = 30, value_name = "SECONDS")]
    drain_timeout: u64,

    /// A file of tenants (TOML): `[[tenant]]` with name, keys or key_sha256, and optionally
    /// max_requests and kv_tokens. Tenants share no cached prefixes, and cannot see each other's
    /// sessions
    #[arg(long, env = "DUNLIN_TENANTS", value_name = "PATH")]
    tenants: Option<PathBuf>,

    /// The certificates to show (PEM), the server's own first; the server then speaks HTTPS alone
    #[arg(long, env = "DUNLIN_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Their private key (PEM)
    #[arg(long, env = "DUNLIN_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Another model that may be asked for by name; it is loaded at its first request. May be given
    /// many times
    #[arg(long, env = "DUNLIN_ALSO", value_name = "NAME=PATH", value_delimiter = ',')]
    also: Vec<String>,

    /// The most models loaded at once; the one used longest ago makes room
    #[arg(long, env = "DUNLIN_MAX_MODELS", default_value_t = 4, value_name = "N")]
    max_models: usize,

    /// Models that nobody uses are unloaded while the machine has less free memory than this
    #[arg(long, env = "DUNLIN_KEEP_FREE_MIB", default_value_t = 256, value_name = "MIB")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    keep_free_mib: u64,

    /// Where sessions are saved [default: they cannot be]
    #[arg(long, env = "DUNLIN_SESSION_FOLDER", value_name = "FOLDER")]
    session_folder: Option<PathBuf>,

    /// The most sessions of a model at once
    #[arg(long, env = "DUNLIN_MAX_SESSIONS", default_value_t = 1024, value_name = "N")]
    max_sessions: usize,

    /// What is logged on standard error: off, error, warn, or info (each request). Prompts, answers
    /// and keys never are
    #[arg(long, env = "DUNLIN_LOG_LEVEL", value_enum, default_value = "warn")]
    #[arg(value_name = "LEVEL", hide_possible_values = true)]
    log_level: logs::Level,

    /// How lines of the log look: text or json
    #[arg(long, env = "DUNLIN_LOG_FORMAT", value_enum, default_value = "text")]
    #[arg(value_name = "FORMAT", hide_possible_values = true)]
    log_format: logs::Format,

    /// A collector of OpenTelemetry that is sent a trace of each request (OTLP over HTTP), as
    /// http://HOST:4318 [default: none]
    #[cfg(feature = "otel")]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// A file of settings (TOML): every flag by its long name. The environment has more weight, and
    /// the command line the most
    #[arg(long, env = "DUNLIN_CONFIG", value_name = "PATH")]
    config: Option<PathBuf>,

    /// Tell on standard error what was loaded
    #[arg(short, long, env = "DUNLIN_VERBOSE", value_parser = FalseyValueParser::new())]
    verbose: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

type Engine = EngineService<Box<dyn Backend>>;

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    logs::start(args.log_level, args.log_format);
    // Sends what is left when it goes, at the end.
    #[cfg(feature = "otel")]
    let _telemetry =
        args.otlp_endpoint.as_deref().map(dunlin_server::Telemetry::start).transpose()?;
    let listed = args.tenants.as_deref().map(tenants::read).transpose()?.unwrap_or_default();
    let config = config(&args, listed.iter().map(|(tenant, _)| tenant.clone()).collect())?;
    let settings = SessionSettings {
        folder: args.session_folder.clone(),
        most: args.max_sessions,
        tenants: listed.iter().map(|(tenant, _)| tenant.name.clone()).collect(),
    };
    let mut engine = args.engine.clone();
    // Nobody's stream should stand still while another's long prompt is computed.
    engine.chunking.get_or_insert(Chunking::Slowdown { percent: 225 });
    engine.budgets = (1..)
        .zip(&listed)
        .filter_map(|(number, (_, tokens))| Some((TenantId(number), (*tokens)?)))
        .collect();
    let template = args.chat_template.as_deref().map(std::fs::read_to_string).transpose();
    let template = template.context("cannot read the chat template")?;
    let first = Arc::new(Engine::with_sessions(settings.clone()));
    let (entries, id) = entries(&args, &engine, template, &settings, &first)?;
    let limits = Limits {
        most: args.max_models,
        keep_free_bytes: args.keep_free_mib << 20,
        free_bytes: Box::new(free_memory),
    };
    let models = ManyModels::new(entries, limits).watching(dunlin_checkpoint::source::all_whole);
    let models = Arc::new(models);
    let app = Arc::new(App::new(models.clone(), config, Identity::system()));
    // Requests are parsed and written by the workers. Those that block tokenize, and then wait for
    // the step under way to end, all at once. The engine has threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    // Where it is refused, connections beyond the limit wait to be accepted.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let ended = runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        // The server answers while the model is loaded: that it is not there yet.
        let serving = tokio::spawn(dunlin_server::serve(listener, app, asked_to_stop()));
        let loading = models.clone();
        let load = move || loading.load_default();
        tokio::task::spawn_blocking(load).await?.map_err(|error| first_problem(&error))?;
        note!("dunlin: {id} is served on {scheme}://{address}");
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RELIEF).await;
                let models = models.clone();
                // A panic in it is told, and ends nothing else.
                let _ = tokio::task::spawn_blocking(move || models.relieve()).await;
            }
        });
        anyhow::Ok(serving.await??)
    })?;
    if ended == Ended::CutOff {
        note!("dunlin: requests that were still under way have been cut off");
    }
    first.flush_record().context("the record of the run is not complete")?;
    // What is left are calls that wait for the engine, which ends with its service.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// How often memory is looked at.
const RELIEF: Duration = Duration::from_secs(5);

/// Why the first model could not be loaded; the whole story, which requests are not told.
fn first_problem(error: &ServiceError) -> anyhow::Error {
    let whole = LOAD_PROBLEM.lock().ok().and_then(|mut problem| problem.take());
    whole.unwrap_or_else(|| anyhow::anyhow!("{error}"))
}

/// What went wrong with a model that was loaded last.
static LOAD_PROBLEM: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// All models that are to be served, and the first one's name.
fn entries(
    args: &Args,
    engine: &EngineArgs,
    template: Option<String>,
    settings: &SessionSettings,
    first: &Arc<Engine>,
) -> anyhow::Result<(Vec<Entry>, String)> {
    let path = load::model_path(&args.model)?;
    let info = model_info(args, &path, args.alias.clone(), template.clone())?;
    let id = info.id.clone();
    let mut all = vec![(info, path, template, Some(first.clone()))];
    for also in &args.also {
        let (name, path) = also.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(
            || unusable(format!("--also is {also:?}, and must be NAME=PATH")),
        )?;
        let path = PathBuf::from(path);
        let info = model_info(args, &path, Some(name.into()), None)
            .with_context(|| format!("the model {name}"))?;
        if all.iter().any(|(other, ..)| other.id == info.id) {
            return Err(unusable(format!("two models are called {name}")));
        }
        all.push((info, path, None, None));
    }
    let entries = all.into_iter().map(|(info, path, template, service)| {
        let mut engine = engine.clone();
        if service.is_none() {
            // A record is of one engine, and a draft model of one model.
            engine.record = None;
            engine.speculation.draft_model = None;
            if engine.speculation.speculate == Speculate::Only(DrafterKind::Model) {
                engine.speculation.speculate = Speculate::default();
            }
        }
        let model = ModelArgs { model: Some(path), ..args.model.clone() };
        let (parallel, verbose) = (args.parallel.max(1), args.verbose);
        let (known, settings) = (info.clone(), settings.clone());
        let load = move || {
            let loaded = || {
                let model = load::model(&model, &engine, parallel, template.clone(), verbose)?;
                let info = ModelInfo { template: model.template().map(Into::into), ..known.clone() };
                let new = || Arc::new(Engine::with_sessions(settings.clone()));
                let service = service.clone().unwrap_or_else(new);
                service.set_speculation(Speculation {
                    speculate: engine.speculation.speculate,
                    max_draft: engine.speculation.speculate_max,
                    max_branches: engine.speculation.speculate_branches,
                    acceptance: engine.speculation.speculate_accept,
                    draft_model: engine.speculation.draft_model.is_some(),
                    store: engine.speculation.has_store(),
                });
                service.set_model(model.engine, model.tokenizer, info)?;
                anyhow::Ok(service as Arc<dyn Service>)
            };
            loaded().map_err(|error: anyhow::Error| {
                let message = format!("{error:#}");
                if let Ok(mut problem) = LOAD_PROBLEM.lock() {
                    *problem = Some(error);
                }
                message
            })
        };
        Entry { info, load: Box::new(load) }
    });
    Ok((entries.collect(), id))
}

/// The machine's free memory, as Linux tells it.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn config(args: &Args, tenants: Vec<Tenant>) -> anyhow::Result<Config> {
    let mut api_keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path).context("cannot read the file of API keys")?;
        let keys = text.lines().map(str::trim).filter(|key| !key.is_empty());
        let before = api_keys.len();
        api_keys.extend(keys.map(Into::into));
        // An empty file must not open the server to everybody.
        if api_keys.len() == before {
            return Err(unusable("the file of API keys has none"));
        }
    }
    if api_keys.iter().any(String::is_empty) {
        return Err(unusable("an API key is empty"));
    }
    if args.max_requests == 0 || args.max_connections == 0 {
        return Err(unusable("--max-requests and --max-connections must be 1 or more"));
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificates), Some(key)) => {
            Some(Tls::from_files(certificates, key).map_err(unusable)?)
        }
        _ => None,
    };
    Ok(Config {
        api_keys,
        tenants,
        tls,
        cors_origins: args.cors_origin.clone(),
        max_connections: args.max_connections,
        max_requests: args.max_requests,
        max_body_bytes: args.max_body_bytes,
        request_timeout: (args.request_timeout > 0)
            .then(|| Duration::from_secs(args.request_timeout)),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        ..Config::default()
    })
}

/// What clients are told of a model, from its file.
fn model_info(
    args: &Args,
    path: &Path,
    alias: Option<String>,
    template: Option<String>,
) -> anyhow::Result<ModelInfo> {
    let file = dunlin_checkpoint::ModelFile::open(path)?;
    let own = file.chat_template().ok().flatten().map(Into::into);
    let facts = file.inspect();
    let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let made = path.metadata().and_then(|meta| meta.modified()).ok();
    let made = made.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(ModelInfo {
        id: alias.unwrap_or(stem),
        context: args.model.context(facts.sizes.context_length),
        vocab_size: facts.sizes.vocab_size,
        created: made.map_or(0, |time| time.as_secs()),
        size_bytes: facts.tensor_bytes,
        architecture: facts.architecture,
        parameters: facts.parameters,
        quantization: facts.types.first().map_or("", |of| of.ty).to_string(),
        template: template.or(own),
        digest: format!("{:032x}", dunlin_checkpoint::fingerprint(path)?.0),
    })
}
