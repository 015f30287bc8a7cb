//! `dunlin serve`: a model over HTTP.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::Context as _;
use dunlin_scheduler::Chunking;
use dunlin_server::{
    App, Config, Ended, Identity, asked_to_stop, engine::{EngineService, Speculation}, service::ModelInfo,
};

use crate::{
    engine_args::EngineArgs,
    load::{self, Model},
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

    /// Tell on standard error what was loaded
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = config(&args)?;
    let template = args.chat_template.as_deref().map(std::fs::read_to_string).transpose();
    let template = template.context("cannot read the chat template")?;
    let path = load::model_path(&args.model)?;
    let service = Arc::new(EngineService::new());
    let app = Arc::new(App::new(service.clone(), config, Identity::system()));
    // Requests are parsed and written by the workers. Those that block tokenize, and then wait for
    // the step under way to end, all at once. The engine has threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    let ended = runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        // The server answers while the model is loaded: that it is not there yet.
        let serving = tokio::spawn(dunlin_server::serve(listener, app, asked_to_stop()));
        let speculating = service.clone();
        let (model, info) = tokio::task::spawn_blocking(move || {
            let parallel = args.parallel.max(1);
            let mut engine = args.engine;
            // Nobody's stream should stand still while another's long prompt is computed.
            engine.chunking.get_or_insert(Chunking::Slowdown { percent: 225 });
            let model = load::model(&args.model, &engine, parallel, template, args.verbose)?;
            speculating.set_speculation(Speculation {
                speculate: engine.speculation.speculate,
                max_draft: engine.speculation.speculate_max,
                draft_model: engine.speculation.draft_model.is_some(),
            });
            let info = model_info(&model, &path, args.alias)?;
            anyhow::Ok((model, info))
        })
        .await??;
        let id = info.id.clone();
        service.set_model(model.engine, model.tokenizer, info)?;
        note!("dunlin: {id} is served on http://{address}");
        anyhow::Ok(serving.await??)
    })?;
    if ended == Ended::CutOff {
        note!("dunlin: requests that were still under way have been cut off");
    }
    service.flush_record().context("the record of the run is not complete")?;
    // What is left are calls that wait for the engine, which ends with its service.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn config(args: &Args) -> anyhow::Result<Config> {
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
    Ok(Config {
        api_keys,
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

/// What clients are told of the model.
fn model_info(
    model: &Model,
    path: &Path,
    alias: Option<String>,
) -> anyhow::Result<ModelInfo> {
    let facts = dunlin_checkpoint::ModelFile::open(path)?.inspect();
    let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let made = path.metadata().and_then(|meta| meta.modified()).ok();
    let made = made.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(ModelInfo {
        id: alias.unwrap_or(stem),
        context: model.engine.context(),
        vocab_size: facts.sizes.vocab_size,
        created: made.map_or(0, |time| time.as_secs()),
        size_bytes: facts.tensor_bytes,
        architecture: facts.architecture,
        parameters: facts.parameters,
        quantization: facts.types.first().map_or("", |of| of.ty).to_string(),
        template: model.template().map(Into::into),
        digest: format!("{:032x}", dunlin_checkpoint::fingerprint(path)?.0),
    })
}
