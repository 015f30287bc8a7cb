//! Requests together against each alone.

use std::collections::{BTreeMap, BTreeSet};

use dunlin_engine::{
    CancelFlag, Completion, ContextOverflow, DiskTierConfig, Engine, EngineConfig, Event, Finish,
    Request,
};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::Class;
use dunlin_testkit::toy::Toy;
use dunlin_units::{RequestId, SeedTree};

use super::support::*;

#[test]
fn every_small_shape_gives_the_reference_tokens() {
    for block_tokens in [1, 2, 4] {
        for max_step in [3, 4, 16] {
            for prompt_len in 1..=9 {
                for max_tokens in 1..=5 {
                    for choices in 1..=3 {
                        let mut request =
                            request((prompt_len * 5 + max_tokens) as u64, prompt_len, max_tokens);
                        request.choices = choices;
                        let mut engine = engine(64, block_tokens, max_step, 60);
                        let done = run_all(&mut engine, std::slice::from_ref(&request));
                        assert_as_reference(std::slice::from_ref(&request), &done);
                        assert_eq!(free_blocks(&engine), 64, "blocks leak");
                        let widest = engine.backend().steps.iter().max();
                        assert!(widest <= Some(&max_step));
                    }
                }
            }
        }
    }
}

fn strangers() -> Vec<Request> {
    (0..40u64)
        .map(|seed| {
            let mut random = SeedTree::root(seed).child("shape").stream();
            let prompt_len = 1 + random.next_below(30) as usize;
            let mut request = request(seed, prompt_len, 1 + random.next_below(20) as usize);
            request.choices = 1 + random.next_below(4) as u32;
            request.stop_tokens = vec![3, 4];
            // Some share a prefix with others.
            if seed % 4 == 0 {
                request.prompt = [&Toy::prompt(99, 13)[..], &request.prompt].concat();
            }
            request.class = [Class::Low, Class::Normal, Class::High][seed as usize % 3];
            request
        })
        .collect()
}

#[test]
fn mixed_batches_give_what_each_request_gives_alone() {
    let requests = strangers();
    // From room for everything down to room for little more than the largest request.
    for (blocks, block_tokens, max_step) in
        [(2000, 4, 512), (2000, 4, 9), (80, 4, 64), (64, 4, 4), (36, 8, 20), (260, 1, 33)]
    {
        let mut engine = engine(blocks, block_tokens, max_step, 64);
        let done = run_all(&mut engine, &requests);
        assert_as_reference(&requests, &done);
        assert_eq!(free_blocks(&engine), blocks as u64);
    }
}

#[test]
fn a_disk_tier_changes_no_token() {
    let requests = strangers();
    let folder = tempfile::tempdir().unwrap();
    for (blocks, tier) in [(64, 30), (100, 200)] {
        let mut config = EngineConfig::new(64);
        config.disk = Some(DiskTierConfig {
            folder: folder.path().into(),
            blocks: tier,
            bytes_per_s: 1 << 40,
        });
        let mut engine = engine_over(Toy::new(blocks, 4, 24), config);
        for _ in 0..3 {
            let done = run_all(&mut engine, &requests);
            assert_as_reference(&requests, &done);
        }
        assert_eq!(free_blocks(&engine), blocks as u64);
    }
}

#[test]
fn samples_share_the_prompt_blocks() {
    let mut request = request(5, 41, 3);
    request.choices = 8;
    let mut engine = engine(30, 4, 64, 64);
    let done = run_all(&mut engine, std::slice::from_ref(&request));
    assert_as_reference(std::slice::from_ref(&request), &done);
    let bill = done[0].bill;
    assert_eq!(bill.computed_tokens, 41 + 8 * 2, "one prefill, and no pass for last tokens");
    assert_eq!((bill.prompt_tokens, bill.output_tokens, bill.steps), (41, 24, 3));
    assert!(bill.kv_bytes <= 30 * 16, "{}", bill.kv_bytes);
    assert!(bill.moved_bytes >= 3000, "{}", bill.moved_bytes);
    assert_eq!((bill.cached_tokens, bill.preemptions), (0, 0));
}

#[test]
fn the_parts_of_bills_add_up() {
    let requests = strangers();
    let mut engine = engine(80, 4, 64, 64);
    let done = run_all(&mut engine, &requests);
    let sum = |part: fn(&Completion) -> u64| done.iter().map(part).sum::<u64>();
    let totals = engine.stats().totals;
    assert_eq!(sum(|c| c.bill.energy.microjoules), totals.energy.microjoules);
    assert_eq!(sum(|c| c.bill.compute_share_ns), totals.step_ns);
    assert_eq!(sum(|c| c.bill.computed_tokens as u64), totals.computed_tokens);
    let tokens = |c: &Completion| c.choices.iter().map(|c| c.token_ids.len() as u64).sum();
    assert_eq!(sum(|c| c.bill.output_tokens as u64), sum(tokens));
    assert_eq!(totals.steps, engine.backend().steps.len() as u64);
    assert!(sum(|c| c.bill.cached_tokens as u64) > 0, "prefixes are shared");
}

#[test]
fn a_prefix_is_shared_within_a_tenant_and_not_between_tenants() {
    let first = request(1, 30, 2);
    let mut engine = engine(200, 4, 64, 100);
    run_one(&mut engine, &first);
    let again = run_one(&mut engine, &first);
    assert!(again.bill.cached_tokens >= 28, "{:?}", again.bill);
    let foreign = Request { tenant: TenantId(7), ..first.clone() };
    let done = run_one(&mut engine, &foreign);
    assert_eq!(done.bill.cached_tokens, 0);
    assert_as_reference(&[first.clone(), foreign], &[again, done]);
    let mut config = EngineConfig::new(100);
    config.prefix_cache = false;
    let mut engine = engine_over(Toy::new(200, 4, 64), config);
    run_one(&mut engine, &first);
    assert_eq!(run_one(&mut engine, &first).bill.cached_tokens, 0);
}

#[test]
fn cancelled_requests_end_and_the_others_do_not_notice() {
    let requests = [request(1, 9, 10), request(2, 5, 10), request(4, 25, 10)];
    // The third waits for blocks: it is cancelled in the queue.
    let mut engine = engine(11, 4, 8, 40);
    let ids: Vec<RequestId> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let mut done = BTreeMap::new();
    let mut seen = 0;
    engine.run(|event| match event {
        Event::Token { request, .. } if request == ids[0] => {
            seen += 1;
            if seen == 3 {
                requests[0].cancel.cancel();
                requests[2].cancel.cancel();
            }
        }
        Event::Token { .. } | Event::Text { .. } => {}
        Event::Finished { request, completion } => {
            done.insert(request, completion);
        }
    });
    let first = &done[&ids[0]].choices[0];
    assert_eq!(first.finish, Finish::Cancelled);
    assert_eq!(first.token_ids, reference(&requests[0], 0)[..3]);
    assert_eq!(done[&ids[1]].choices[0].token_ids, reference(&requests[1], 0));
    let third = &done[&ids[2]];
    assert_eq!(third.choices[0].finish, Finish::Cancelled);
    assert!(third.choices[0].token_ids.is_empty());
    assert_eq!(free_blocks(&engine), 11);
}

/// Requests whose KV comes from disk or goes there, cancelled just then.
#[test]
fn requests_that_leave_while_kv_moves_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (mut loading, mut leaving) = (0, 0);
    for seed in 0..24 {
        let mut config = EngineConfig::new(64);
        config.disk = Some(DiskTierConfig {
            folder: folder.path().into(),
            blocks: 120,
            bytes_per_s: 1 << 40,
        });
        let mut engine = engine_over(Toy::new(64, 4, 24), config);
        let requests = strangers();
        // All that memory does not hold goes to disk.
        run_all(&mut engine, &requests);
        let mut random = SeedTree::root(seed).child("leavers").stream();
        let mut ids = BTreeMap::new();
        for request in &requests {
            let request = Request { cancel: CancelFlag::new(), ..request.clone() };
            ids.insert(engine.submit(request.clone()).unwrap(), request);
        }
        let (mut done, mut begun) = (BTreeMap::new(), BTreeSet::new());
        let mut more = true;
        while more {
            more = engine.step(&mut |event| match event {
                Event::Token { request, .. } => drop(begun.insert(request)),
                Event::Text { .. } => {}
                Event::Finished { request, completion } => drop(done.insert(request, completion)),
            });
            let (kv, load) = (engine.core().kv(), engine.core().load());
            if load.loading == 0 && kv.leaving_blocks() == 0 || random.next_below(3) == 0 {
                continue;
            }
            (loading, leaving) = (loading + load.loading, leaving + kv.leaving_blocks());
            // Those that load are among those that have not begun, and mostly the oldest.
            let open = ids.keys().filter(|id| !done.contains_key(id) && !begun.contains(id));
            let count = 1 + random.next_below(3) as usize;
            open.take(count).for_each(|id| ids[id].cancel.cancel());
        }
        let mut left = 0;
        for (id, request) in &ids {
            for (n, choice) in done[id].choices.iter().enumerate() {
                let wanted = reference(request, n as u32);
                if choice.finish == Finish::Cancelled {
                    assert!(request.cancel.is_cancelled() && choice.token_ids.len() < wanted.len());
                    left += 1;
                } else {
                    assert_eq!(choice.token_ids, wanted, "seed {seed}, request {id}");
                }
            }
        }
        assert!(left > 0, "seed {seed}");
        engine.core().check().unwrap();
        let (kv, load) = (engine.core().kv(), engine.core().load());
        assert_eq!((kv.moves_in_flight(), kv.leaving_blocks(), load.loading), (0, 0, 0));
        assert_eq!(free_blocks(&engine), 64);
        // What is on disk is right, and what is not is computed.
        assert_as_reference(&requests, &run_all(&mut engine, &requests));
        drop(engine);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file stays");
    }
    println!("{loading} loading, {leaving} blocks on their way to disk when requests left");
    assert!(loading > 20 && leaving > 20, "{loading} {leaving}");
}

#[test]
fn time_that_is_up_ends_a_request() {
    let mut engine = engine(40, 4, 8, 100);
    let expired = Request { expires_ns: Some(0), ..request(1, 9, 10) };
    let good = request(2, 9, 10);
    let done = run_all(&mut engine, &[expired, good.clone()]);
    assert_eq!(done[0].choices[0].finish, Finish::Expired);
    assert_eq!(done[0].choices[0].finish.reason(), "expired");
    assert_eq!(done[1].choices[0].token_ids, reference(&good, 0));
}

#[test]
fn what_the_operator_limits_is_clipped() {
    let mut config = EngineConfig::new(100);
    config.clip_tokens = Some(4);
    let mut engine = engine_over(Toy::new(40, 4, 8), config);
    let long = request(1, 9, 10);
    let done = run_one(&mut engine, &long);
    assert_eq!(done.choices[0].finish, Finish::Clipped);
    assert_eq!(done.choices[0].token_ids, reference(&long, 0)[..4]);
}

#[test]
fn nan_logits_end_only_their_sequence() {
    let mut toy = Toy::new(100, 4, 32);
    toy.nan_after = Some(49);
    let mut bad = request(1, 5, 6);
    bad.prompt = vec![1, 2, 49];
    bad.choices = 2;
    let mut good = request(2, 5, 6);
    good.prompt = vec![1, 2, 3];
    good.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
    let mut engine = engine_over(toy, EngineConfig::new(64));
    let done = run_all(&mut engine, &[bad, good.clone()]);
    for choice in &done[0].choices {
        let message = choice.finish.error().unwrap();
        assert!(message.contains("NaN logits at position 3"), "{message}");
        assert!(choice.token_ids.is_empty());
    }
    assert_eq!(done[1].choices[0].token_ids, reference(&good, 0));
    assert_eq!(free_blocks(&engine), 100);
}

#[test]
fn a_step_that_fails_ends_only_those_who_fail_it() {
    let mut toy = Toy::new(40, 4, 32);
    toy.fails_on = Some(49);
    let mut bad = request(1, 5, 6);
    bad.prompt = vec![1, 2, 49];
    bad.choices = 2;
    let mut good = request(2, 5, 12);
    good.prompt = vec![4, 2, 3];
    good.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
    let mut engine = engine_over(toy, EngineConfig::new(32));
    let done = run_all(&mut engine, &[bad, good.clone()]);
    assert_eq!(done[0].choices.len(), 2);
    for choice in &done[0].choices {
        assert_eq!(choice.finish.reason(), "error");
        assert!(choice.finish.error().unwrap().contains("as the test wants"));
    }
    assert_eq!(done[1].choices[0].token_ids, reference(&good, 0));
    assert_eq!(free_blocks(&engine), 40);
}

#[test]
fn limits_are_refused_with_both_counts() {
    let mut engine = engine(16, 4, 8, 40);
    let mut check = |request: Request, expected: &str| {
        let error = engine.submit(request).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should say {expected:?}");
    };
    check(request(1, 0, 1), "prompt is empty");
    check(request(1, 40, 1), "the prompt has 40 tokens, but the context holds 40");
    check(request(1, 30, 11), "the prompt's 30 tokens and 11 more exceed the context of 40");
    check(request(1, 3, 0), "max_tokens is 0");
    let mut bad = request(1, 3, 1);
    bad.prompt[1] = Toy::VOCAB as u32;
    check(bad, "prompt token 50 is outside the model's vocabulary of 50");
    let many = |choices| Request { choices, ..request(1, 9, 20) };
    check(many(0), "0 samples");
    check(many(9), "9 samples were asked for; it can be 1 to 8");
    check(many(8), "needs KV for 204 tokens, but the model was loaded with 64");
    let mut nan = request(1, 3, 1);
    nan.sampling.temperature = f32::NAN;
    check(nan, "temperature: NaN is out of range");
    let mut stop = request(1, 3, 1);
    stop.stop_strings = vec!["x".into()];
    check(stop, "stop strings need a tokenizer");
}

#[test]
fn ends_are_told_apart() {
    let mut engine = engine(16, 4, 8, 20);
    let finish = |engine: &mut Engine<Toy>, request: &Request| {
        let done = run_one(engine, request);
        (done.choices[0].finish.clone(), done.choices[0].token_ids.len())
    };
    let plain = request(7, 10, 5);
    assert_eq!(finish(&mut engine, &plain), (Finish::MaxTokens, 5));
    let mut over = request(7, 10, 50);
    over.overflow = ContextOverflow::Stop;
    assert_eq!(finish(&mut engine, &over), (Finish::ContextFull, 10));
    let unlimited = Request { max_tokens: None, ..plain.clone() };
    assert_eq!(finish(&mut engine, &unlimited), (Finish::ContextFull, 10));
    let third = reference(&plain, 0)[2];
    let stops = Request { stop_tokens: vec![third], ..plain.clone() };
    let first = reference(&plain, 0).iter().position(|&t| t == third).unwrap();
    assert_eq!(finish(&mut engine, &stops), (Finish::StopToken(third), first + 1));
}

#[test]
fn logprobs_come_with_each_token() {
    let mut request = request(3, 6, 4);
    request.logprobs = Some(2);
    request.choices = 2;
    let mut engine = engine(16, 4, 8, 20);
    let done = run_one(&mut engine, &request);
    for choice in &done.choices {
        let logprobs = choice.logprobs.as_ref().unwrap();
        assert_eq!(logprobs.len(), 4);
        let mut prefix = request.prompt.clone();
        for (entry, &token) in logprobs.iter().zip(&choice.token_ids) {
            let logits = Toy::logits_after(&prefix);
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let exact = f64::from(logits[token as usize]) - sum.ln();
            assert_eq!(entry.chosen.token, token);
            assert!((entry.chosen.logprob - exact).abs() < 1e-6);
            assert_eq!(entry.top.len(), 2);
            assert!(entry.top[0].logprob >= entry.chosen.logprob);
            prefix.push(token);
        }
    }
}

#[test]
fn the_core_may_turn_a_request_away() {
    let mut config = EngineConfig::new(64);
    config.max_waiting = 1;
    let mut engine = engine_over(Toy::new(40, 4, 8), config);
    let requests = [request(1, 5, 3), request(2, 5, 3), request(4, 5, 3)];
    let done = run_all(&mut engine, &requests);
    assert_as_reference(&requests[..1], &done[..1]);
    for completion in &done[1..] {
        let finish = &completion.choices[0].finish;
        assert!(matches!(finish, Finish::Rejected(_)), "{finish:?}");
        assert!(finish.error().unwrap().contains("1 requests are waiting already"));
    }
}
