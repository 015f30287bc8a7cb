//! Grammars compiled for a vocabulary, and the cache of them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use llguidance::{
    Matcher, ParserFactory, TokenParser,
    api::{GrammarWithLexer, ParserLimits, TopLevelGrammar},
    earley::SlicedBiasComputer,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::Value;

use super::{GrammarError, GrammarMatcher, GrammarSource, gbnf};
use crate::{TokenType, Tokenizer, TokenizerError};

/// The most bytes of a source.
const MAX_BYTES: usize = 64 << 10;
/// The most bytes of all grammars that are kept, or in use beside.
const MAX_MEMORY: usize = 256 << 20;
/// The most grammars that are kept for requests to come.
const MAX_KEPT: usize = 64;
/// Compilers recurse over what they read; this is for the deepest that fits [`MAX_BYTES`].
const STACK_BYTES: usize = 256 << 20;
/// A token of more bytes cannot be in the tree of the vocabulary.
const MAX_TOKEN_BYTES: usize = 1000;
/// The tree has fewer nodes than this.
const MAX_VOCABULARY_BYTES: usize = 4_000_000;

/// A compiled grammar. Clones are the same one.
#[derive(Clone)]
pub struct Grammar(pub(super) Arc<Compiled>);

pub(super) struct Compiled {
    /// At the start, with the tables that matchers fill as they go and share.
    shared: Mutex<TokenParser>,
    /// The same, with tables that nobody has filled.
    pristine: Mutex<TokenParser>,
    source: GrammarSource,
    plain: PlainTokens,
}

/// The tokens that are text and nothing else, one bit each: no end, no control token, not empty. A
/// parser can be asked about one of them alone.
type PlainTokens = Arc<[u32]>;

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Grammar").field(&self.0.source).finish()
    }
}

impl Grammar {
    /// A matcher at the start of a text.
    pub fn matcher(&self) -> GrammarMatcher {
        GrammarMatcher::new(self.clone(), self.inner_matcher())
    }

    pub(super) fn inner_matcher(&self) -> Matcher {
        Matcher::new(Ok(lock(&self.0.shared).clone()))
    }

    /// A matcher that shares nothing with others: it fails where the grammar does, and never because
    /// of what others have asked of it. The shared tables are made anew.
    pub(super) fn matcher_alone(&self) -> Matcher {
        let fresh = lock(&self.0.pristine).deep_clone();
        *lock(&self.0.shared) = fresh.deep_clone();
        Matcher::new(Ok(fresh))
    }

    /// Whether a token is text and nothing else.
    pub(super) fn is_plain(&self, token: u32) -> bool {
        self.0.plain.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// About how many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        // A panic within the tables poisons them; they are replaced at the next error.
        let tables = |parser: &Mutex<TokenParser>| {
            let parser = lock(parser).clone();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                parser.parser.lexer_stats().num_bytes
            }))
            .unwrap_or(0)
        };
        tables(&self.0.shared) + tables(&self.0.pristine) + 4 * self.0.source.len()
    }
}

/// Compiles grammars for one vocabulary, and keeps those that were used last.
pub struct GrammarCompiler {
    factory: ParserFactory,
    tokenizer: Tokenizer,
    plain: PlainTokens,
    /// Tokens of the vocabulary.
    n_tokens: usize,
    pub(super) cache: Mutex<Cache>,
    /// One at a time: whoever sends many waits for them.
    turn: Mutex<()>,
}

#[derive(Default)]
pub(super) struct Cache {
    /// Last used at the back.
    pub(super) kept: VecDeque<Grammar>,
    /// All that there are, kept or not.
    pub(super) alive: Vec<Weak<Compiled>>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// A compiler for a tokenizer's vocabulary. Takes tenths of a second for large ones.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let env = environment(tokenizer)?;
        let slices = SlicedBiasComputer::general_slices();
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        }));
        let Ok(Ok(mut factory)) = made else { return Err(GrammarError::Vocabulary) };
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // A state is one or two kilobytes.
            max_lexer_states: 20_000,
            max_grammar_size: 200_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let n_tokens = tokenizer.n_tokens() as usize;
        let (tokenizer, plain) = (tokenizer.clone(), plain_tokens(env.tok_trie()));
        let (cache, turn) = (Mutex::default(), Mutex::default());
        Ok(Self { factory, tokenizer, plain, n_tokens, cache, turn })
    }

    /// Words of a mask.
    pub fn mask_words(&self) -> usize {
        self.n_tokens.div_ceil(32)
    }

    /// Compiles a grammar, or finds it.
    ///
    /// # Errors
    /// Grammars that are none or too large, and grammars for which there is no room now.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        if source.len() > MAX_BYTES {
            return Err(GrammarError::TooLong { bytes: source.len(), limit: MAX_BYTES });
        }
        if let Some(known) = lock(&self.cache).find(source) {
            return Ok(known);
        }
        let _turn = lock(&self.turn);
        if let Some(known) = lock(&self.cache).find(source) {
            return Ok(known);
        }
        lock(&self.cache).make_room()?;
        let top = top_level(source, &self.tokenizer)?;
        let parser = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            let compile = || self.factory.create_parser(top);
            let thread = builder.spawn_scoped(scope, compile).map_err(|_| GrammarError::Busy)?;
            let made = thread.join().map_err(|_| explain("it cannot be compiled"))?;
            made.map_err(|error| explain(&error.to_string()))
        })?;
        let mut parser = parser;
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let pristine = Mutex::new(parser.deep_clone());
        let shared = Mutex::new(parser);
        let (source, plain) = (source.clone(), self.plain.clone());
        let grammar = Grammar(Arc::new(Compiled { shared, pristine, source, plain }));
        // What cannot even begin is told now.
        let mut first = grammar.matcher();
        let begins = first.allowed(&[]).map(drop);
        begins.map_err(|error| explain(&error.to_string()))?;
        if first.is_complete() {
            return Err(explain("it allows nothing but an empty text"));
        }
        lock(&self.cache).keep(grammar.clone());
        Ok(grammar)
    }
}

impl Cache {
    fn find(&mut self, source: &GrammarSource) -> Option<Grammar> {
        let at = self.kept.iter().position(|grammar| grammar.0.source == *source)?;
        let grammar = self.kept.remove(at)?;
        self.kept.push_back(grammar.clone());
        Some(grammar)
    }

    /// Lets go of kept grammars until all that there are take less than they may.
    fn make_room(&mut self) -> Result<(), GrammarError> {
        loop {
            self.alive.retain(|grammar| grammar.strong_count() > 0);
            let alive = self.alive.iter().filter_map(Weak::upgrade);
            if alive.map(|compiled| Grammar(compiled).bytes()).sum::<usize>() < MAX_MEMORY {
                return Ok(());
            }
            if self.kept.pop_front().is_none() {
                return Err(GrammarError::Busy);
            }
        }
    }

    fn keep(&mut self, grammar: Grammar) {
        self.alive.push(Arc::downgrade(&grammar.0));
        self.kept.push_back(grammar);
        if self.kept.len() > MAX_KEPT {
            self.kept.pop_front();
        }
    }
}

/// Nothing is left half done where a lock is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first line of what the compiler says, short enough for an error.
fn explain(message: &str) -> GrammarError {
    let lines = message.lines().map(str::trim);
    let first = lines.clone().find(|line| !line.is_empty()).unwrap_or("it cannot be compiled");
    let message: String = first.chars().take(300).collect();
    GrammarError::Invalid(message.replace("<non-verbose/>", "").trim().to_string())
}

/// The source in the library's terms.
fn top_level(
    source: &GrammarSource,
    tokenizer: &Tokenizer,
) -> Result<TopLevelGrammar, GrammarError> {
    let GrammarSource::Either(sources) = source else {
        return Ok(TopLevelGrammar::from_grammar(one(source, tokenizer)?));
    };
    // A grammar for each, and one in front that names them.
    let names: Vec<String> = (0..sources.len()).map(|i| format!("alternative{i}")).collect();
    let refs: Vec<String> = names.iter().map(|name| format!("@{name}")).collect();
    let front = GrammarWithLexer::from_lark(format!("start: {}", refs.join(" | ")));
    let mut top = TopLevelGrammar::from_grammar(front);
    for (source, name) in sources.iter().zip(names) {
        top.grammars.push(GrammarWithLexer { name: Some(name), ..one(source, tokenizer)? });
    }
    Ok(top)
}

/// A source that stands alone.
fn one(source: &GrammarSource, tokenizer: &Tokenizer) -> Result<GrammarWithLexer, GrammarError> {
    Ok(match source {
        GrammarSource::Either(_) => return Err(explain("alternatives cannot be nested")),
        GrammarSource::JsonSchema(text) => {
            let schema: Value = serde_json::from_str(text)
                .map_err(|error| explain(&format!("it is no JSON: {error}")))?;
            if !schema.is_object() && !schema.is_boolean() {
                return Err(explain("a schema is an object or a boolean"));
            }
            GrammarWithLexer::from_json_schema(bounded_whitespace(schema))
        }
        GrammarSource::Regex(text) => GrammarWithLexer::from_regex(text),
        GrammarSource::Grammar(text) if gbnf::is_gbnf(text) => {
            GrammarWithLexer::from_lark(gbnf::to_lark(text).map_err(|e| explain(&e))?)
        }
        GrammarSource::Grammar(text) => GrammarWithLexer::from_lark(text.clone()),
        GrammarSource::AfterToken { token, grammar } => {
            let id = tokenizer.token_id(token);
            let control = |&id: &u32| tokenizer.token_type(id) == Some(TokenType::Control);
            let spelt = || Value::from(token.as_str()).to_string();
            let token = id.filter(control).map_or_else(spelt, |id| format!("<[{id}]>"));
            GrammarWithLexer::from_lark(format!("start: {token} rest\n{grammar}"))
        }
        GrammarSource::Choice(texts) => {
            if texts.is_empty() || texts.iter().any(String::is_empty) {
                return Err(explain("there must be at least one text, and none that is empty"));
            }
            let quoted = texts.iter().map(|text| Value::from(text.as_str()).to_string());
            let either = quoted.collect::<Vec<_>>().join(" | ");
            GrammarWithLexer::from_lark(format!("start: {either}"))
        }
    })
}

/// JSON may have any amount of white space between its parts, and small models write it without
/// end. A schema that says nothing of it allows a line break with its indentation, or a space.
fn bounded_whitespace(mut schema: Value) -> Value {
    if let Value::Object(object) = &mut schema
        && !object.contains_key("x-guidance")
    {
        let options = serde_json::json!({"whitespace_pattern": r"(\r?\n[ \t]{0,32}|[ ])"});
        object.insert("x-guidance".into(), options);
    }
    schema
}

/// Those of a vocabulary.
fn plain_tokens(trie: &TokTrie) -> PlainTokens {
    let mut plain = vec![0u32; trie.vocab_size().div_ceil(32)];
    for token in 0..trie.vocab_size() as u32 {
        let bytes = trie.token(token);
        let is_text = !bytes.is_empty() && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        if is_text && !trie.eos_tokens().contains(&token) {
            plain[token as usize / 32] |= 1 << (token % 32);
        }
    }
    plain.into()
}

/// The vocabulary as the library takes it.
fn environment(tokenizer: &Tokenizer) -> Result<TokEnv, GrammarError> {
    let view = tokenizer.view();
    let end_ids = tokenizer.end_ids();
    let special = |name: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
    let mut total = 0;
    let mut words = Vec::with_capacity(tokenizer.n_tokens() as usize + 1);
    for id in 0..tokenizer.n_tokens() {
        let text = tokenizer.text_of(&view, id, true);
        let text: &[u8] = text.map_err(|_: TokenizerError| GrammarError::Vocabulary)?;
        let name = tokenizer.token_bytes(id).unwrap_or_default();
        let word = if end_ids.contains(&id) || text.is_empty() {
            // Control tokens are no text; a grammar can name them.
            if name.is_empty() { Vec::new() } else { special(name) }
        } else if text[0] == TokTrie::SPECIAL_TOKEN_MARKER {
            // No character begins so.
            Vec::new()
        } else {
            text.to_vec()
        };
        let word = if word.len() > MAX_TOKEN_BYTES { Vec::new() } else { word };
        total += word.len();
        words.push(word);
    }
    // A vocabulary without an end has a token for it that is never chosen.
    let mut info = TokRxInfo::new(words.len() as u32, end_ids.first().copied().unwrap_or(0));
    if end_ids.is_empty() {
        info = TokRxInfo::new(words.len() as u32 + 1, words.len() as u32);
        words.push(special(b"<end of text>"));
    }
    if total >= MAX_VOCABULARY_BYTES || words.len() >= MAX_VOCABULARY_BYTES {
        return Err(GrammarError::Vocabulary);
    }
    let trie = std::panic::catch_unwind(|| {
        let trie = TokTrie::from(&info, &words);
        if end_ids.len() > 1 { trie.with_eos_tokens(&end_ids) } else { trie }
    });
    let trie = trie.map_err(|_| GrammarError::Vocabulary)?;
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}
