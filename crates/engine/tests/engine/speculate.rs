//! Drafts change nothing but how many steps it takes, whoever drafts and however wrong.

use std::path::PathBuf;

use dunlin_engine::{
    DraftControl, DrafterKind, Engine, EngineConfig, Request, Speculate, SpeculationContract,
    drafter::{DraftAcceptance, Drafter, VocabularyMap, Wanted, model::ModelDrafter},
    recorder,
};
use dunlin_scheduler::{DraftNode, DraftWork, Proposal, SeqOp};
use dunlin_tensor::Backend;
use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, Stream};

use super::support::*;

/// Proposes trees of anything.
struct Nonsense(Stream);

impl Drafter for Nonsense {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Layers
    }
    fn pass_permille(&self, _: &dyn Backend) -> u32 {
        1
    }
    fn changed(&mut self, _: &SeqOp) {}
    fn propose(&mut self, wanted: &[Wanted<'_>], proposals: &mut Vec<Proposal>) -> DraftWork {
        for wanted in wanted {
            let nodes = (0..wanted.nodes as u32)
                .map(|i| DraftNode {
                    token: self.0.next_below(Toy::VOCAB as u64) as u32,
                    parent: (self.0.next_below(u64::from(i) + 1) as u32)
                        .checked_sub(1)
                        .unwrap_or(DraftNode::ROOT),
                    confidence: self.0.next_below(1 << 16) as u32,
                    drafter: self.kind(),
                })
                .collect();
            proposals.push(Proposal { seq: wanted.seq, drafter: self.kind(), nodes });
        }
        DraftWork { passes: 1, tokens: wanted.len() as u32 }
    }
}

fn open(blocks: usize, control: DraftControl, record: Option<PathBuf>) -> Engine<Toy> {
    let config = EngineConfig {
        draft_control: control,
        draft_store_tokens: 1 << 13,
        record,
        ..EngineConfig::new(200)
    };
    let vocabulary = VocabularyMap::identity(Toy::VOCAB as u32);
    let drafters: Vec<Box<dyn Drafter>> = vec![
        // The same model: it is always right.
        Box::new(ModelDrafter::new(Toy::new(200, 4, 16), vocabulary)),
        Box::new(Nonsense(SeedTree::root(5).child("nonsense").stream())),
    ];
    Engine::with_drafters(Toy::new(blocks, 4, 24), None, config, drafters).unwrap()
}

/// Requests of which some repeat themselves: a bias leaves few tokens to choose from.
fn requests(seed: u64, speculate: Speculate) -> Vec<Request> {
    (0..12u64)
        .map(|i| {
            let mut request = request(seed * 100 + i, 2 + (i as usize * 5) % 23, 40);
            if i % 2 == 0 {
                let bias = |t: usize| (t as u32, if t < 3 { 0.0 } else { f32::NEG_INFINITY });
                request.sampling.logit_bias = (0..Toy::VOCAB).map(bias).collect();
            }
            request.choices = if i % 5 == 0 { 3 } else { 1 };
            request.stop_tokens = vec![1 + i as u32];
            request.max_draft = [31, 1, 4, 0][i as usize % 4];
            request.speculate = speculate;
            request
        })
        .collect()
}

#[test]
fn outputs_are_those_of_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    let ways = [Speculate::Off, Speculate::Auto].into_iter();
    for (n, speculate) in ways.chain(DrafterKind::ALL.map(Speculate::Only)).enumerate() {
        for control in [DraftControl::Fixed, DraftControl::Adaptive] {
            // Room for all, and for so few that they give way to each other.
            for blocks in [500, 45] {
                let path = folder.path().join("run.log");
                let mut engine = open(blocks, control, Some(path.clone()));
                let requests = requests(n as u64, speculate);
                let done = run_all(&mut engine, &requests);
                assert_as_reference(&requests, &done);
                for (request, completion) in requests.iter().zip(&done) {
                    let bill = &completion.bill;
                    assert!(bill.accepted_tokens <= bill.draft_tokens);
                    let drafts = request.max_draft > 0 && request.speculate != Speculate::Off;
                    assert!(drafts || bill.draft_tokens == 0);
                }
                let sum = |f: fn(&dunlin_engine::Bill) -> usize| {
                    done.iter().map(|c| f(&c.bill)).sum::<usize>()
                };
                let (drafted, accepted) = (sum(|b| b.draft_tokens), sum(|b| b.accepted_tokens));
                let stats = *engine.core().speculation();
                if speculate == Speculate::Only(DrafterKind::Model) && blocks == 500 {
                    let of = stats.of(DrafterKind::Model);
                    assert!(control == DraftControl::Adaptive || drafted > 100, "{drafted}");
                    // Of each place one node is right at most; of the places, most have it.
                    let sum = |f: fn(&(u64, u64)) -> u64| of.by_position.iter().map(f).sum::<u64>();
                    let (tried, taken) = (sum(|p| p.0), sum(|p| p.1));
                    assert!(taken * 10 >= tried * 8, "{taken} of {tried}: {of:?}");
                    assert!(accepted * 2 >= drafted, "{accepted} of {drafted}: {of:?}");
                }
                // These requests have no grammar that could propose anything.
                let none = [Speculate::Off, Speculate::Only(DrafterKind::Grammar)];
                if none.contains(&speculate) {
                    assert_eq!((accepted, drafted), (0, 0), "{speculate}");
                } else if control == DraftControl::Fixed {
                    assert!(accepted > 0 && drafted > 0, "{speculate}");
                }
                engine.flush_record().unwrap();
                let report = recorder::replay(&path).unwrap();
                assert!(report.difference.is_none(), "{:?}", report.difference);
            }
        }
    }
}

#[test]
fn residual_sampling_says_so_and_leaves_greedy_choices_alone() {
    let mut engine = open(500, DraftControl::Fixed, None);
    for speculate in [Speculate::Auto, Speculate::Only(DrafterKind::Model)] {
        let mut greedy = requests(3, speculate);
        for request in &mut greedy {
            request.sampling.temperature = 0.0;
            request.acceptance = DraftAcceptance::Residual;
        }
        let done = run_all(&mut engine, &greedy);
        assert_as_reference(&greedy, &done);
        assert!(done.iter().all(|c| c.bill.speculation_contract == SpeculationContract::Exact));
        let mut drawn = requests(4, speculate);
        for request in &mut drawn {
            request.sampling.temperature = 1.0;
            request.acceptance = DraftAcceptance::Residual;
        }
        let done = run_all(&mut engine, &drawn);
        let (mut exact, mut others) = ((Vec::new(), Vec::new()), 0);
        for (request, completion) in drawn.iter().zip(&done) {
            match completion.bill.speculation_contract {
                SpeculationContract::Distribution => others += 1,
                // No draft of the model's was made for it: it is what plain decoding gives.
                SpeculationContract::Exact => {
                    exact.0.push(request.clone());
                    exact.1.push(completion.clone());
                }
            }
            assert!(request.max_draft > 0 || exact.1.last() == Some(completion));
            for choice in &completion.choices {
                let most = request.max_tokens.unwrap();
                let stopped = request.stop_tokens.contains(choice.token_ids.last().unwrap());
                assert!(choice.token_ids.len() == most || stopped);
            }
        }
        // Where a bias leaves three tokens all of them are proposed, and none has to be drawn.
        assert_eq!((others, exact.0.len()), (3, 9), "{speculate}");
        assert_as_reference(&exact.0, &exact.1);
        // The draft model is the model: what it draws is nearly always taken.
        let sum =
            |f: fn(&dunlin_engine::Bill) -> usize| done.iter().map(|c| f(&c.bill)).sum::<usize>();
        assert!(sum(|b| b.accepted_tokens) > 0 && sum(|b| b.draft_tokens) > 0);
    }
}

#[test]
fn a_request_that_is_cancelled_leaves_no_draft_behind() {
    let mut engine = open(500, DraftControl::Fixed, None);
    let requests = requests(9, Speculate::Auto);
    let cancel = requests[3].cancel.clone();
    for request in &requests {
        engine.submit(request.clone()).unwrap();
    }
    let mut seen = 0;
    engine.run(|event| {
        if let dunlin_engine::Event::Token { .. } = event {
            seen += 1;
            if seen == 40 {
                cancel.cancel();
            }
        }
    });
    engine.core().check().unwrap();
    assert_eq!(free_blocks(&engine), 500);
}
