//! A scripted engine, and a server before it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use dunlin_kvcache::TenantId;
use dunlin_server::{
    App, Config, Ended, Identity, serve,
    service::{
        Chat, ChatEnding, Chunk, Finish, Generate, Generation, Health, Input, ModelInfo, OnDrop,
        Service, ServiceError, SessionCall, SessionState, Stats, TokenLogprob, TokenLogprobs,
        Usage,
    },
};
use tokio::sync::{mpsc, oneshot};

/// The moment at which all answers are made: 2026-01-02T03:04:05.678Z.
const NOW_NS: i128 = 1_767_323_045_678_000_000;

/// An engine whose answers a test has written.
pub struct Fake {
    pub health: Mutex<Health>,
    pub models: Mutex<Vec<ModelInfo>>,
    /// What every request is answered with.
    pub script: Mutex<Vec<Chunk>>,
    /// What happens when the script is over: its answer ends, or waits for the client to leave.
    pub holds: Mutex<bool>,
    /// What every request is refused with.
    pub refusal: Mutex<Option<ServiceError>>,
    /// What was asked for.
    pub seen: Mutex<Vec<Generate>>,
    /// What was done with sessions.
    pub calls: Mutex<Vec<(String, SessionCall)>>,
    /// Requests that are under way.
    pub live: Arc<AtomicUsize>,
    /// Answers that do not end by themselves.
    held: Arc<Mutex<Vec<mpsc::Sender<Chunk>>>>,
}

impl Fake {
    fn new() -> Self {
        Self {
            health: Mutex::new(Health::Ready),
            models: Mutex::new(vec![model("tiny", Some("{% if tools %}<tool_call>{% endif %}"))]),
            script: Mutex::new(answer(&["Hel", "", "lo"], Finish::StopToken)),
            holds: Mutex::new(false),
            refusal: Mutex::new(None),
            seen: Mutex::new(Vec::new()),
            calls: Mutex::default(),
            live: Arc::default(),
            held: Arc::default(),
        }
    }

    /// The only request so far.
    pub fn asked(&self) -> Generate {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        seen[0].clone()
    }

    /// Waits until so many requests are under way.
    pub fn wait_for_live(&self, live: usize) {
        let started = Instant::now();
        while self.live.load(Ordering::SeqCst) != live {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{} requests are under way instead of {live}",
                self.live.load(Ordering::SeqCst)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn model(id: &str, template: Option<&str>) -> ModelInfo {
    ModelInfo {
        id: id.into(),
        context: 128,
        vocab_size: 256,
        created: 1_700_000_000,
        size_bytes: 1234,
        architecture: "llama".into(),
        parameters: 135_000_000,
        quantization: "Q4_1".into(),
        template: template.map(Into::into),
        digest: "00ff".into(),
    }
}

pub fn token(text: &str) -> Chunk {
    Chunk::Token { choice: 0, text: text.into(), logprobs: None }
}

pub fn end(finish: Finish) -> Chunk {
    Chunk::End { choice: 0, finish }
}

pub fn usage(prompt_tokens: usize, cached_tokens: usize, output_tokens: usize) -> Chunk {
    Chunk::Done(Usage {
        prompt_tokens,
        cached_tokens,
        output_tokens,
        drafted_tokens: 0,
        accepted_tokens: 0,
        speculation_contract: "exact",
        queue_ns: 1,
        prefill_ns: 20,
        decode_ns: 300,
    })
}

/// One choice of these texts, for a prompt of 7 tokens of which 3 were cached.
pub fn answer(texts: &[&str], finish: Finish) -> Vec<Chunk> {
    let tokens = texts.iter().map(|text| token(text));
    tokens.chain([end(finish), usage(7, 3, texts.len())]).collect()
}

pub fn logprobs(text: &str, logprob: f32, top: &[(&[u8], f32)]) -> Option<TokenLogprobs> {
    let top = top.iter().map(|&(bytes, logprob)| TokenLogprob { bytes: bytes.into(), logprob });
    Some(TokenLogprobs { chosen: TokenLogprob { bytes: text.into(), logprob }, top: top.collect() })
}

impl Service for Fake {
    fn health(&self) -> Health {
        *self.health.lock().unwrap()
    }

    fn models(&self) -> Vec<ModelInfo> {
        self.models.lock().unwrap().clone()
    }

    fn stats(&self) -> Stats {
        Stats {
            running: self.live.load(Ordering::SeqCst),
            waiting: 2,
            kv_blocks: 40,
            kv_blocks_used: 10,
            block_tokens: 16,
            preemptions: 5,
            steps: 11,
            computed_tokens: 60,
            step_ns: 1_500_000_000,
            microjoules: 2_500_000,
            energy_source: "model: a guess",
        }
    }

    /// Tokens are bytes.
    fn encode(&self, model: &str, input: &Input) -> Result<Vec<u32>, ServiceError> {
        match input {
            Input::Text(text) => Ok(text.bytes().map(u32::from).collect()),
            Input::Tokens(tokens) => Ok(tokens.clone()),
            Input::Chat(chat) => Ok(self.render(model, chat)?.bytes().map(u32::from).collect()),
        }
    }

    fn decode(&self, _: &str, tokens: &[u32]) -> Result<String, ServiceError> {
        let bytes: Vec<u8> = tokens.iter().map(|&id| id as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn render(&self, _: &str, chat: &Chat) -> Result<String, ServiceError> {
        let mut text = String::new();
        for message in &chat.messages {
            if message["content"] == "raise" {
                let message = "the chat template says: no".to_string();
                return Err(ServiceError::Unusable { field: Some("messages"), message });
            }
            text += &format!("{}: {}\n", message["role"].as_str().unwrap(), message["content"]);
        }
        if chat.ending == ChatEnding::Generation {
            text += "assistant:";
        }
        Ok(text)
    }

    fn generate(&self, request: Generate) -> Result<Generation, ServiceError> {
        let prompt = self.encode(&request.model, &request.input)?.len();
        if prompt >= 4096 {
            return Err(ServiceError::ContextExceeded { prompt, context: 128 });
        }
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        self.seen.lock().unwrap().push(request);
        let (sender, chunks) = mpsc::channel(4);
        let mut script = self.script.lock().unwrap().clone();
        if self.seen.lock().unwrap().last().is_some_and(|request| request.hidden) {
            script = vec![Chunk::Hidden(vec![3.0, 0.0, -4.0]), end(Finish::Length), usage(7, 0, 1)];
        }
        let (holds, live) = (*self.holds.lock().unwrap(), self.live.clone());
        live.fetch_add(1, Ordering::SeqCst);
        let (left, held) = (live.clone(), self.held.clone());
        let cancel = OnDrop::new(move || {
            if holds {
                left.fetch_sub(1, Ordering::SeqCst);
            }
        });
        std::thread::spawn(move || {
            let _ = script.into_iter().try_for_each(|chunk| sender.blocking_send(chunk));
            if holds {
                held.lock().unwrap().push(sender);
            } else {
                live.fetch_sub(1, Ordering::SeqCst);
            }
        });
        Ok(Generation { prompt_tokens: 7, chunks, cancel })
    }

    /// All sessions are there but those called `missing`.
    fn session(
        &self,
        _: TenantId,
        _: &str,
        id: &str,
        call: SessionCall,
    ) -> Result<SessionState, ServiceError> {
        self.calls.lock().unwrap().push((id.to_string(), call.clone()));
        let id = match call {
            _ if id == "missing" => return Err(ServiceError::NotFound("there is no session")),
            SessionCall::Fork { to } => to,
            _ => id.to_string(),
        };
        Ok(SessionState { id, tokens: 5, busy: false })
    }

    fn sessions(&self, _: TenantId, _: &str) -> Result<Vec<SessionState>, ServiceError> {
        Ok(vec![SessionState { id: "a".into(), tokens: 5, busy: true }])
    }

    fn register(&self, request: Generate) -> Result<u64, ServiceError> {
        self.seen.lock().unwrap().push(request);
        Ok(7)
    }

    fn question(
        &self,
        _: TenantId,
        _: &str,
        _: &str,
        question: u64,
        _: bool,
    ) -> Result<bool, ServiceError> {
        let unknown = ServiceError::NotFound("there is no such question");
        if question == 7 { Ok(true) } else { Err(unknown) }
    }

    fn ask(
        &self,
        tenant: TenantId,
        model: &str,
        session: &str,
        question: u64,
    ) -> Result<Generation, ServiceError> {
        self.question(tenant, model, session, question, false)?;
        self.generate(Generate::new(model.into(), Input::Text("asked".into())))
    }
}

/// A server before a scripted engine; it stops when dropped.
pub struct Server {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Ended>>,
}

impl Server {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let fake = Arc::new(Fake::new());
        let app = Arc::new(App::new(fake.clone(), config, Identity::fixed(NOW_NS)));
        let (stop, stopped) = oneshot::channel();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let stopped = async { stopped.await.unwrap_or(()) };
                serve(listener, app, stopped).await.unwrap()
            })
        });
        Self { address: address.recv().unwrap(), fake, stop: Some(stop), thread: Some(thread) }
    }

    /// Answers every request with these chunks.
    pub fn script(self, chunks: Vec<Chunk>) -> Self {
        *self.fake.script.lock().unwrap() = chunks;
        self
    }

    /// Answers do not end by themselves.
    pub fn holding(self) -> Self {
        *self.fake.holds.lock().unwrap() = true;
        let mut script = self.fake.script.lock().unwrap();
        script.retain(|chunk| matches!(chunk, Chunk::Token { .. }));
        drop(script);
        self
    }

    /// Asks the server to end.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits for the server to end.
    pub fn join(&mut self) -> Ended {
        self.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.join();
        }
    }
}
