//! Trace readers against values counted independently of them:
//! `python3 crates/workload/data/count.py` prints every number that is expected of the excerpts.

mod common;

use common::{EXCERPTS, excerpt, lenient, read};
use dunlin_units::{SeedTree, SessionId, Time};
use dunlin_workload::stats::{Report, Stats, Summary, SummaryOptions};
use dunlin_workload::trace::{
    BadRow, BadRows, Column, Problem, ReadOptions, TraceError, TraceKind, TraceReader, native,
    stretch,
};
use dunlin_workload::{ClientId, Content, GroupId, Piece, Request, Wait};

fn report(rows: &[Request]) -> Report {
    let options = SummaryOptions {
        windows_ns: vec![1_000_000_000, 10_000_000_000],
        ..SummaryOptions::default()
    };
    let mut summary = Summary::new(&options);
    rows.iter().for_each(|r| summary.add(r));
    summary.report()
}

fn near(found: f64, counted: f64) -> bool {
    (found - counted).abs() <= 1e-9 * counted.abs()
}

/// Sum, least, largest, 50th, 90th and 99th percentile.
#[track_caller]
fn check(stats: Option<&Stats>, counted: [u64; 6]) {
    let stats = stats.expect("there are rows");
    assert_eq!([stats.sum as u64, stats.min, stats.max], counted[..3]);
    for (found, counted) in [stats.p50, stats.p90, stats.p99].iter().zip(&counted[3..]) {
        // Above 16,384 within 2^-14.
        let slack = if *counted < 16_384 { 0 } else { counted >> 14 };
        assert!(found.abs_diff(*counted) <= slack, "{found} for {counted}");
    }
}

/// Windows, dispersion, correlation and peak.
#[track_caller]
fn check_windows(report: &Report, at: usize, counted: (u64, f64, f64, u64)) {
    let found = &report.windows[at];
    assert_eq!((found.windows, found.peak), (counted.0, counted.3));
    assert!(near(found.dispersion.unwrap(), counted.1), "{found:?}");
    assert!(near(found.correlation.unwrap(), counted.2), "{found:?}");
}

#[test]
fn azure() {
    let found = report(&read(&excerpt("azure_conv.csv")));
    assert_eq!((found.requests, found.span_ns), (1499, 309_305_781_000));
    check(found.prompt_tokens.as_ref(), [1_599_988, 2, 6066, 1017, 1847, 4100]);
    check(found.output_tokens.as_ref(), [385_245, 12, 1000, 217, 429, 612]);
    assert!(near(found.rate_per_s.unwrap(), 4.843103789256366));
    assert!(near(found.gaps_ns.as_ref().unwrap().cv.unwrap(), 1.1875457902554687));
    check_windows(&found, 0, (309, 1.3029683963396061, 0.2222557542487863, 12));
    check_windows(&found, 1, (30, 3.3869665513264113, 0.5191838356319884, 70));
    assert_eq!((found.sharing.tokens, found.clients), (0.0, 1));

    let found = report(&read(&excerpt("azure_code.csv")));
    assert_eq!((found.requests, found.span_ns), (999, 521_583_657_000));
    check(found.prompt_tokens.as_ref(), [2_122_260, 6, 7436, 1469, 5511, 7436]);
    check(found.output_tokens.as_ref(), [27_567, 6, 841, 13, 52, 295]);
    assert!(near(found.gaps_ns.as_ref().unwrap().cv.unwrap(), 11.003948889362944));
    check_windows(&found, 0, (521, 11.714920902730523, 0.6961614603951269, 32));
}

#[test]
fn mooncake() {
    let rows = read(&excerpt("mooncake_conversation.jsonl"));
    let found = report(&rows);
    assert_eq!((found.requests, found.span_ns), (400, 141_000_000_000));
    check(found.prompt_tokens.as_ref(), [5_710_530, 892, 121_298, 8974, 27_701, 89_867]);
    check(found.output_tokens.as_ref(), [146_073, 1, 2000, 370, 614, 906]);
    check_windows(&found, 0, (141, 6.822802493015246, -0.40416048544135114, 16));
    assert_eq!(found.sharing.tokens, 781_596.0);
    let ids = |row: &Request| match &row.content {
        Content::Blocks { ids, block_tokens: 512 } => ids.iter().sum::<u64>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(rows.iter().map(ids).sum::<u64>(), 50_854_624);

    let found = report(&read(&excerpt("mooncake_synthetic.jsonl")));
    assert_eq!((found.requests, found.span_ns), (120, 33_740_000_000));
    check(found.prompt_tokens.as_ref(), [1_618_444, 13, 56_397, 13_492, 36_640, 54_647]);
    assert!(near(found.gaps_ns.as_ref().unwrap().cv.unwrap(), 1.0269218372451974));
    assert_eq!(found.sharing.tokens, 82_624.0);
}

#[test]
fn llmservingsim() {
    let rows = read(&excerpt("llmservingsim_sharegpt.jsonl"));
    let found = report(&rows);
    assert_eq!((found.requests, found.span_ns), (120, 11_080_115_475));
    check(found.prompt_tokens.as_ref(), [100_797, 262, 3452, 750, 1363, 2884]);
    check(found.output_tokens.as_ref(), [81_087, 516, 822, 713, 770, 796]);
    assert_eq!(found.sharing.tokens, 3600.0);
    assert_eq!(rows[0].arrival, Time(46_926_808));
}

#[test]
fn pairs_of_lengths() {
    let reader = lenient_of("vidur_arxiv.csv");
    assert!(!reader.0.has_times());
    let found = report(&read(&reader.1));
    assert_eq!((found.requests, found.span_ns, found.rate_per_s), (1499, 0, None));
    check(found.prompt_tokens.as_ref(), [3_833_048, 1, 4017, 2722, 3713, 3937]);
    check(found.output_tokens.as_ref(), [455_903, 5, 3792, 166, 387, 3274]);
    let found = report(&read(&excerpt("etalon_sharegpt.csv")));
    check(found.prompt_tokens.as_ref(), [3_483_646, 2, 8014, 1751, 5627, 7395]);
    check(found.output_tokens.as_ref(), [690_903, 2, 1023, 454, 866, 994]);

    let timed = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,10.0,2\n1.5,7,3\n";
    let rows = read(timed.as_bytes());
    assert_eq!(
        rows,
        [Request::new(Time(250_000_000), 10, 2), Request::new(Time(1_500_000_000), 7, 3),]
    );
}

/// A reader of an excerpt that is kept for as long as it.
fn lenient_of(name: &str) -> (TraceReader<std::io::Cursor<Vec<u8>>>, Vec<u8>) {
    let bytes = excerpt(name);
    let options = ReadOptions::default();
    (TraceReader::new(std::io::Cursor::new(bytes.clone()), None, options).unwrap(), bytes)
}

/// The columns as the publication documents them; written by hand.
const BURSTGPT: &str = "\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
185,ChatGPT,1360,0,1360,API log
195,ChatGPT,185,44,229,API log
";

#[test]
fn burstgpt() {
    let mut reader = TraceReader::new(BURSTGPT.as_bytes(), None, ReadOptions::default()).unwrap();
    assert_eq!(reader.kind(), TraceKind::BurstGpt);
    let rows: Vec<Request> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    let row = |s: u64, prompt, output, client| Request {
        client: ClientId(client),
        ..Request::new(Time(s * 1_000_000_000), prompt, output)
    };
    let expected =
        [row(5, 472, 18, 0), row(45, 1087, 230, 0), row(118, 417, 276, 1), row(195, 185, 44, 2)];
    assert_eq!(rows, expected);
    // The fourth failed.
    assert_eq!((reader.report().rows, reader.report().failed, reader.report().bad), (4, 1, 0));
}

/// As ServeGen writes it; with quotes, since further columns may be lists.
#[test]
fn servegen() {
    let text = "request_id,timestamp,input_tokens,output_tokens,reason_ratio,note\n\
                0,0.5,10,20,0.25,\n1,1.2,15,25,1e-05,\"[1, 2]\"\n";
    let rows = read(text.as_bytes());
    assert_eq!(
        rows,
        [Request::new(Time(500_000_000), 10, 20), Request::new(Time(1_200_000_000), 15, 25),]
    );
}

#[test]
fn formats_are_found() {
    for (name, kind) in EXCERPTS {
        assert_eq!(lenient(&excerpt(name)).kind(), kind, "{name}");
    }
    for line in ["", "a,b,c", "{}", "{\"x\":1}", "TIMESTAMP,ContextTokens", "\u{1F600}"] {
        assert_eq!(TraceKind::detect(line), None, "{line:?}");
    }
}

#[test]
fn ends_of_lines_and_byte_order_marks_are_no_content() {
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let rows = ["2023-11-16 18:15:46.5,374,44", "2023-11-16 18:15:47.25,396,109"];
    let expected = [Request::new(Time(0), 374, 44), Request::new(Time(750_000_000), 396, 109)];
    for text in [
        format!("{header}\n{}\n{}\n", rows[0], rows[1]),
        format!("{header}\r\n{}\r\n{}", rows[0], rows[1]),
        format!("\u{feff}{header}\n\n{}\n  \n{}\n\n", rows[0], rows[1]),
    ] {
        assert_eq!(read(text.as_bytes()), expected, "{text:?}");
    }
    let row = r#"{"timestamp": 3, "input_length": 5, "output_length": 1, "hash_ids": [9]}"#;
    assert_eq!(read(format!("\u{feff}{row}").as_bytes()).len(), 1);
}

/// A trace of which one row cannot be, and what is said of it.
#[track_caller]
fn refused(text: &str, line: u64, column: Column, problem: Problem) {
    let expected = BadRow { line, column, problem };
    let options = ReadOptions::default();
    let error = match TraceReader::new(text.as_bytes(), None, options) {
        Ok(mut reader) => {
            let error = reader.by_ref().find_map(Result::err).expect("an error");
            assert!(reader.next().is_none(), "it goes on after an error");
            error
        }
        Err(error) => error,
    };
    match error {
        TraceError::Row(row) => assert_eq!(row, expected, "{row}"),
        other => panic!("{other}, not {expected}"),
    }
}

#[test]
fn bad_rows_are_named() {
    let azure = |rows: &str| format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}");
    let good = "2023-11-16 18:15:46.5,374,44\n";
    let (time, context) = (Column::Name("TIMESTAMP"), Column::Name("ContextTokens"));
    let generated = Column::Name("GeneratedTokens");
    for (row, column, problem) in [
        ("2023-11-16 18:15:47,nan,5", context, Problem::NaN),
        ("2023-11-16 18:15:47,-3,5", context, Problem::Negative),
        ("2023-11-16 18:15:47,3,inf", generated, Problem::Infinite),
        ("2023-11-16 18:15:47,3.5,5", context, Problem::NotWhole),
        ("2023-11-16 18:15:47,,5", context, Problem::Missing),
        ("2023-11-16 18:15:47,x,5", context, Problem::NotANumber),
        ("2023-11-16 18:15:47,0,5", Column::Name("prompt"), Problem::NoPrompt),
        ("2023-11-16 18:15:47,3", Column::Row, Problem::Fields { found: 2, expected: 3 }),
        ("2023-11-16 18:15:47,3,4,5", Column::Row, Problem::Fields { found: 4, expected: 3 }),
        ("2023-13-16 18:15:47,3,4", time, Problem::NotATime),
        ("nan,3,4", time, Problem::NotATime),
        ("2023-11-16 18:15:46,3,4", time, Problem::BeforeFirst),
        (
            "2023-11-16 18:15:47,16777217,4",
            Column::Name("prompt"),
            Problem::TooLarge { value: 16_777_217, most: 16_777_216 },
        ),
        (
            "2043-11-16 18:15:47,3,4",
            Column::Name("arrival"),
            Problem::TooLarge { value: 631_152_000_500_000_000, most: 316_224_000_000_000_000 },
        ),
    ] {
        refused(&azure(&format!("{good}{row}\n")), 3, column, problem);
    }
    let unsorted = "2023-11-16 18:15:48,3,4\n2023-11-16 18:15:47,3,4\n";
    let problem = Problem::Unsorted { at: 500_000_000, before: 1_500_000_000 };
    refused(&azure(&format!("{good}\n{unsorted}")), 5, Column::Name("arrival"), problem);

    refused("TIMESTAMP,ContextTokens\n", 1, Column::Row, Problem::UnknownFormat);
    let missing = TraceReader::new(
        "TIMESTAMP,ContextTokens\n".as_bytes(),
        Some(TraceKind::Azure),
        ReadOptions::default(),
    );
    assert_eq!(
        missing.unwrap_err().to_string(),
        "line 1, column `GeneratedTokens`: the header has no such column"
    );

    let sum = Problem::Sum { total: 491, prompt: 472, output: 18 };
    refused(&BURSTGPT.replace("490", "491"), 2, Column::Name("Total tokens"), sum);
    refused(&BURSTGPT.replace("45,", "-45,"), 3, Column::Name("Timestamp"), Problem::Negative);

    let mooncake =
        r#"{"timestamp": 3, "input_length": 600, "output_length": 1, "hash_ids": [9, 8]}"#;
    let blocks = Problem::Blocks { found: 1, expected: 2 };
    refused(&mooncake.replace("9, 8", "9"), 1, Column::Name("hash_ids"), blocks);
    refused(&mooncake.replace(": 3", ": -3"), 1, Column::Name("timestamp"), Problem::Negative);
    let json = |text: &str| Problem::Json(text.to_string());
    for (text, column, problem) in [
        (mooncake.replace("600", "6.5"), 37, "invalid type: floating point `6.5`, expected u64"),
        (mooncake.replace("\"input_length\": 600, ", ""), 57, "missing field `input_length`"),
        (mooncake[..50].to_string(), 50, "EOF while parsing a string"),
    ] {
        // Formats are found by names that a cut line may lack.
        let reader =
            TraceReader::new(text.as_bytes(), Some(TraceKind::Mooncake), ReadOptions::default());
        let error = reader.unwrap().find_map(Result::err).unwrap();
        let TraceError::Row(row) = error else { panic!("{error}") };
        assert_eq!((row.line, &row.problem), (1, &json(problem)), "{text}");
        assert!(matches!(row.column, Column::Byte(at) if at.abs_diff(column) <= 3), "{row:?}");
    }
    for (value, problem) in
        [("NaN", Problem::NaN), ("Infinity", Problem::Infinite), ("-Infinity", Problem::Infinite)]
    {
        let text = mooncake.replace("600", value);
        let mut reader = TraceReader::new(text.as_bytes(), None, ReadOptions::default()).unwrap();
        let Some(Err(TraceError::Row(row))) = reader.next() else { panic!("{value} was read") };
        assert_eq!((row.line, row.problem), (1, problem), "{:?}", row.column);
    }
    let odd = azure(good) + "2023-11-16 18:15:47,3,4\n";
    let mut bytes = odd.into_bytes();
    let at = bytes.len() - 4;
    bytes[at] = 0xFF;
    let error = TraceReader::new(bytes.as_slice(), None, ReadOptions::default())
        .unwrap()
        .find_map(Result::err)
        .unwrap();
    assert_eq!(error.to_string(), "line 3, byte 21: not UTF-8");
}

#[test]
fn empty_traces_are_errors() {
    let open = |text: &'static str| TraceReader::new(text.as_bytes(), None, ReadOptions::default());
    assert!(matches!(open(""), Err(TraceError::Empty)));
    assert!(matches!(open("\n \r\n\n"), Err(TraceError::Empty)));
    let mut reader = open("TIMESTAMP,ContextTokens,GeneratedTokens\n\n").unwrap();
    assert!(matches!(reader.next(), Some(Err(TraceError::NoRows { bad: 0 }))));
    assert!(reader.next().is_none());
}

#[test]
fn bad_rows_can_be_left_out() {
    let mut text = String::from("timestamp,input_tokens,output_tokens\n");
    for i in 0..100 {
        text += &match i % 10 {
            3 => format!("{i},nan,5\n"),
            7 => format!("{},5,5\n", i - 20),
            _ => format!("{i},{},5\n", i + 1),
        };
    }
    let options = ReadOptions { bad_rows: BadRows::Skip, described: 4, ..ReadOptions::default() };
    let mut reader = TraceReader::new(text.as_bytes(), None, options).unwrap();
    let rows: Vec<Request> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 80);
    let report = reader.report();
    assert_eq!((report.rows, report.bad, report.failed), (80, 20, 0));
    let lines: Vec<u64> = report.described.iter().map(|row| row.line).collect();
    assert_eq!(lines, [5, 9, 15, 19]);

    let mut reader = lenient(b"timestamp,input_tokens,output_tokens\n1,2\n3,nan,4\n");
    assert!(matches!(reader.next(), Some(Err(TraceError::NoRows { bad: 2 }))));
}

#[test]
fn unsorted_traces_can_be_sorted_in_memory() {
    let text = "timestamp,input_tokens,output_tokens\n3,1,1\n1,2,1\n2,3,1\n1,4,1\n";
    let reader = TraceReader::new(text.as_bytes(), None, ReadOptions::default()).unwrap();
    let (rows, report) = reader.read_sorted().unwrap();
    let prompts: Vec<u32> = rows.iter().map(|r| r.prompt_tokens).collect();
    assert_eq!((prompts, report.rows), (vec![2, 4, 3, 1], 4));
}

#[test]
fn long_lines_are_passed_over() {
    let options = ReadOptions { bad_rows: BadRows::Skip, max_line: 64, ..ReadOptions::default() };
    let long = "9".repeat(1000);
    let text = format!("timestamp,input_tokens,output_tokens\n1,2,3\n1,{long},3\n2,5,6\n");
    for capacity in [1, 7, 4096] {
        let input = std::io::BufReader::with_capacity(capacity, text.as_bytes());
        let mut reader = TraceReader::new(input, None, options.clone()).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).count(), 2);
        let bad = BadRow { line: 3, column: Column::Row, problem: Problem::LongLine };
        assert_eq!(reader.report().described, [bad]);
    }
    // The first line too, where it is a row.
    let row = r#"{"arrival_ns":5,"prompt_tokens":30,"output_tokens":7}"#;
    let text = format!("{long}\n\n{row}\n");
    let mut reader =
        TraceReader::new(text.as_bytes(), Some(TraceKind::Native), options.clone()).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 1);
    assert_eq!((reader.report().bad, reader.report().described[0].line), (1, 1));
    assert!(TraceReader::new(text.as_bytes(), None, options).is_err());
}

#[test]
fn our_own_rows_come_back_as_they_were() {
    let base = Request::new(Time(5), 30, 7);
    let rows = [
        base.clone(),
        Request {
            client: ClientId(9),
            turn: 2,
            session: Some(SessionId(u64::MAX)),
            wait: Wait::PreviousTurn,
            delay_ns: 12,
            deadline_ns: std::num::NonZeroU64::new(99),
            content: Content::Pieces(
                [Piece { stream: 1 << 63, tokens: 10 }, Piece { stream: 3, tokens: 20 }].into(),
            ),
            ..base.clone()
        },
        Request {
            group: std::num::NonZeroU32::new(4).map(GroupId),
            wait: Wait::Group { group: GroupId(std::num::NonZeroU32::MIN), members: 6 },
            content: Content::Blocks { ids: [7, u64::MAX].into(), block_tokens: 16 },
            ..base.clone()
        },
    ];
    let mut bytes = Vec::new();
    rows.iter().for_each(|r| native::write(r, &mut bytes).unwrap());
    assert_eq!(read(&bytes), rows);
    assert_eq!(
        String::from_utf8(bytes).unwrap().lines().next(),
        Some(r#"{"arrival_ns":5,"prompt_tokens":30,"output_tokens":7}"#)
    );
    let with = |more: &str| {
        format!("{{\"arrival_ns\":5,\"prompt_tokens\":30,\"output_tokens\":7,{more}}}")
    };
    let link = |text| Problem::Link(text);
    for (more, column, problem) in [
        ("\"wait\":\"previous_turn\"", "wait", link("there is no turn before it")),
        (
            "\"group\":2,\"wait\":{\"group\":{\"group\":2,\"members\":3}}",
            "wait",
            link("it waits for the group that it belongs to"),
        ),
        ("\"pieces\":[[1,29]]", "pieces", link("their tokens are not as many as the prompt's")),
        ("\"blocks\":[1]", "block_tokens", link("blocks of unknown length")),
        ("\"blocks\":[1],\"block_tokens\":0", "block_tokens", link("blocks without tokens")),
    ] {
        refused(&with(more), 1, Column::Name(column), problem);
    }
    let unknown = TraceReader::new(with("\"x\":1").as_bytes(), None, ReadOptions::default())
        .unwrap()
        .find_map(Result::err)
        .unwrap();
    assert!(unknown.to_string().contains("unknown field `x`"), "{unknown}");
}

#[test]
fn stretched_traces_keep_what_users_do() {
    let waiting = Request { wait: Wait::PreviousTurn, ..Request::new(Time(500), 1, 1) };
    let rows = [Request::new(Time(1000), 1, 1), waiting, Request::new(Time(2001), 1, 1)];
    let arrivals: Vec<u64> = stretch(rows.into_iter(), 0.5).map(|r| r.arrival.0).collect();
    assert_eq!(arrivals, [500, 500, 1001]);
}

/// A file that fails after its first two lines.
struct Failing(usize);

impl std::io::Read for Failing {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        const LINES: &[u8] = b"timestamp,input_tokens,output_tokens\n1,2,3\n";
        if self.0 == LINES.len() {
            return Err(std::io::Error::other("the disk is gone"));
        }
        let count = into.len().min(LINES.len() - self.0);
        into[..count].copy_from_slice(&LINES[self.0..self.0 + count]);
        self.0 += count;
        Ok(count)
    }
}

#[test]
fn failures_to_read_are_told() {
    let input = std::io::BufReader::new(Failing(0));
    let mut reader = TraceReader::new(input, None, ReadOptions::default()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), Request::new(Time(1_000_000_000), 2, 3));
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 3: the disk is gone");
    assert!(reader.next().is_none());
}

/// Rows of every excerpt survive our own format.
#[test]
fn excerpts_survive_our_own_format() {
    for (name, _) in EXCERPTS {
        let rows = read(&excerpt(name));
        let mut bytes = Vec::new();
        rows.iter().for_each(|r| native::write(r, &mut bytes).unwrap());
        assert_eq!(read(&bytes), rows, "{name}");
    }
    // And token ids below the vocabulary that is asked for.
    let mut ids = Vec::new();
    read(&excerpt("mooncake_synthetic.jsonl"))[0].prompt_ids(
        SeedTree::root(1).seed(),
        300,
        &mut ids,
    );
    assert!(ids.iter().all(|&id| id < 300) && ids.len() == 40_160);
}
