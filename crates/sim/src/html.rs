//! The report as one page: no scripts, nothing from elsewhere, charts as SVG.

use std::fmt::Write as _;

use crate::{
    footprint::SiteFootprint,
    metrics::{Bin, DurationStats},
    report::Report,
};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1d2733;--paper:#fff;--faint:#7a8694;--line:#d8dee5;--a:#2468a8;--b:#c46a1f;--c:#3d8a57;--d:#8a4a9a}
@media (prefers-color-scheme:dark){:root{--ink:#dfe6ee;--paper:#14191f;--faint:#93a0ae;--line:#333d48;--a:#6fb1ee;--b:#eaa160;--c:#7fcf9b;--d:#c79ad6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin:2rem 0 .4rem}
.sub{color:var(--faint);margin-top:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1.2rem 0}
.tile{border:1px solid var(--line);border-radius:6px;padding:.5rem .7rem}.tile b{display:block;font-size:1.25rem}.tile span{color:var(--faint);font-size:.85rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}th{color:var(--faint);font-weight:500}
svg{width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
.legend{color:var(--faint);font-size:.85rem}.legend i{display:inline-block;width:.8rem;height:.2rem;margin:0 .3rem 0 .9rem;vertical-align:middle}
";

/// A page about a run called `name`, with what it comes to where the cluster stands, if that is known.
pub fn page(report: &Report, name: &str, footprint: Option<&SiteFootprint>) -> String {
    let s = report.summary();
    let mut out = String::new();
    let title = if name.is_empty() { "Simulation" } else { name };
    let title = escape(title);
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>\
         <p class=\"sub\">{} replicas, {:.1} s of simulated time, event log {}</p>",
        s.replicas.count, s.duration_s, s.event_digest
    );
    let tile = |out: &mut String, value: String, what: &str| {
        let _ = write!(out, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    };
    out.push_str("<div class=\"tiles\">");
    tile(&mut out, format!("{}", s.requests.finished), "requests finished");
    tile(&mut out, format!("{:.1}", s.throughput.requests_per_s), "requests a second");
    tile(&mut out, format!("{:.0}", s.throughput.output_tokens_per_s), "output tokens a second");
    tile(&mut out, percent(s.goodput.share), "kept their goals");
    tile(&mut out, percent(s.kv.prefix_hit_share), "of prompt tokens cached");
    tile(&mut out, percent(s.kv.mean_use), "of KV memory in use");
    tile(&mut out, percent(s.steps.busy_share), "of replica time busy");
    tile(&mut out, format!("{:.2} J", s.energy.joules_per_output_token), "an output token");
    if let Some(f) = footprint {
        tile(&mut out, format!("{:.1} g", f.gco2_per_mtok), "of CO2-eq a million output tokens");
        tile(&mut out, format!("{:.2} l", f.water_litres_per_mtok), "of water, the same");
    }
    out.push_str("</div>");
    latencies(&mut out, report);
    timelines(&mut out, report);
    let _ = writeln!(
        out,
        "<h2>Counts</h2><table><tr><th>what</th><th>number</th></tr>{}</table></body></html>",
        counts(report)
    );
    out
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn latencies(out: &mut String, report: &Report) {
    let s = report.summary().latency;
    let rows: Vec<(&str, DurationStats)> = [
        ("to the first token", s.ttft),
        ("between tokens, a request's mean", s.tpot),
        ("between tokens, each", s.itl),
        ("to the last token", s.e2e),
        ("in queues", s.queue),
        ("until KV was reserved", s.reserve),
        ("hand-over of KV", s.handoff),
    ]
    .into_iter()
    .filter_map(|(name, stats)| Some((name, stats?)))
    .collect();
    out.push_str(
        "<h2>Latency, in milliseconds</h2><table><tr><th></th><th>mean</th><th>p50</th>\
         <th>p90</th><th>p99</th><th>max</th></tr>",
    );
    for (name, d) in &rows {
        let _ = write!(out, "<tr><td>{name}</td>");
        for ms in [d.mean_ms, d.p50_ms, d.p90_ms, d.p99_ms, d.max_ms] {
            let _ = write!(out, "<td>{ms:.2}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
    bars(out, &rows);
}

/// Percentiles as bars, on a logarithmic scale.
fn bars(out: &mut String, rows: &[(&str, DurationStats)]) {
    let all = rows.iter().flat_map(|(_, d)| [d.p50_ms, d.p90_ms, d.p99_ms]).filter(|v| *v > 0.0);
    let (low, high) = all.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high <= 0.0 {
        return;
    }
    let (first, last) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let x = |ms: f64| 190.0 + 560.0 * (ms.max(low).log10() - first) / (last - first);
    let height = 24 * rows.len() + 24;
    let _ = write!(out, "<svg viewBox=\"0 0 760 {height}\" role=\"img\">");
    for decade in first as i32..=last as i32 {
        let at = x(10f64.powi(decade));
        let _ = write!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{}\" stroke=\"var(--line)\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{} ms</text>",
            height - 18,
            height - 4,
            10f64.powi(decade)
        );
    }
    for (place, (name, d)) in rows.iter().enumerate() {
        let y = 24 * place;
        let _ = write!(out, "<text x=\"0\" y=\"{}\">{name}</text>", y + 14);
        let spans = [(low, d.p50_ms, 0.9), (d.p50_ms, d.p90_ms, 0.55), (d.p90_ms, d.p99_ms, 0.25)];
        for (from, to, opacity) in spans {
            let width = (x(to) - x(from)).max(0.0);
            let _ = write!(
                out,
                "<rect x=\"{:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"12\" \
                 fill=\"var(--a)\" opacity=\"{opacity}\"/>",
                x(from),
                y + 4
            );
        }
    }
    out.push_str("</svg><p class=\"legend\">to p50, p90 and p99, lighter and lighter</p>");
}

fn timelines(out: &mut String, report: &Report) {
    let line = &report.metrics.timeline;
    let width = line.width_ns() as f64;
    let blocks = report.metrics.capacity_ns as f64 / (report.metrics.last.0 as f64).max(1.0);
    let per_s = |f: fn(&Bin) -> u64| move |b: &Bin| f(b) as f64 / width * 1e9;
    let level = |f: fn(&Bin) -> u128| move |b: &Bin| f(b) as f64 / width;
    let series = |f: &dyn Fn(&Bin) -> f64| line.bins().iter().map(f).collect::<Vec<f64>>();
    let seconds = width / 1e9;
    chart(
        out,
        "Requests a second",
        seconds,
        &[("arriving", series(&per_s(|b| b.arrived))), ("ending", series(&per_s(|b| b.finished)))],
    );
    chart(
        out,
        "Tokens a second",
        seconds,
        &[
            ("output", series(&per_s(|b| b.output_tokens))),
            ("computed", series(&per_s(|b| b.computed_tokens))),
        ],
    );
    chart(
        out,
        "Requests in the system",
        seconds,
        &[
            ("running", series(&level(|b| b.running_ns))),
            ("waiting", series(&level(|b| b.waiting_ns))),
        ],
    );
    let used = level(|b| b.blocks_ns);
    chart(
        out,
        "Share of KV memory in use",
        seconds,
        &[("in use", series(&|b: &Bin| used(b) / blocks.max(1.0)))],
    );
    chart(out, "Replicas that run a step", seconds, &[("busy", series(&level(|b| b.busy_ns)))]);
    if report.metrics.energy_uj > 0 {
        let watts = |b: &Bin| b.energy_uj as f64 / width * 1e3;
        chart(out, "Power of steps, in watts", seconds, &[("power", series(&watts))]);
    }
}

/// Lines over time.
fn chart(out: &mut String, title: &str, seconds: f64, lines: &[(&str, Vec<f64>)]) {
    let most = lines.iter().flat_map(|l| &l.1).fold(0.0f64, |m, v| m.max(*v));
    let bins = lines.first().map_or(0, |l| l.1.len());
    if bins == 0 || most <= 0.0 {
        return;
    }
    const COLOURS: [&str; 4] = ["--a", "--b", "--c", "--d"];
    let _ = write!(out, "<h2>{title}</h2><p class=\"legend\">");
    for (place, (name, _)) in lines.iter().enumerate() {
        let _ = write!(out, "<i style=\"background:var({})\"></i>{name}", COLOURS[place % 4]);
    }
    out.push_str("</p><svg viewBox=\"0 0 760 180\" role=\"img\">");
    let top = ceiling(most);
    for step in 0..=4 {
        let (value, y) = (top * f64::from(step) / 4.0, 155.0 - 145.0 * f64::from(step) / 4.0);
        let _ = write!(
            out,
            "<line x1=\"60\" x2=\"750\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"var(--line)\"/>\
             <text x=\"54\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y + 4.0,
            short(value)
        );
    }
    let total = seconds * bins as f64;
    for step in 0..=4 {
        let x = 60.0 + 690.0 * f64::from(step) / 4.0;
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"173\" text-anchor=\"middle\">{} s</text>",
            short(total * f64::from(step) / 4.0)
        );
    }
    for (place, (_, values)) in lines.iter().enumerate() {
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke=\"var({})\" stroke-width=\"1.5\" points=\"",
            COLOURS[place % 4]
        );
        for (bin, value) in values.iter().enumerate() {
            let x = 60.0 + 690.0 * (bin as f64 + 0.5) / bins as f64;
            let _ = write!(out, "{x:.1},{:.1} ", 155.0 - 145.0 * value / top);
        }
        out.push_str("\"/>");
    }
    out.push_str("</svg>");
}

/// The next number of 1, 2 or 5 times a power of ten.
fn ceiling(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|f| f * power).into_iter().find(|c| *c >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn counts(report: &Report) -> String {
    let m = &report.metrics;
    let s = report.summary();
    let rows = [
        ("requests that arrived", m.arrived),
        ("finished", m.finished),
        ("cut short by a limit", m.clipped),
        ("rejected", m.rejected),
        ("failed", m.failed),
        ("begun again after a fault", m.retried),
        ("unfinished at the end", s.requests.unfinished),
        ("prompt tokens", m.prompt_tokens),
        ("of those cached", m.cached_tokens),
        ("output tokens", m.output_tokens),
        ("tokens computed", m.computed_tokens),
        ("of those for the second time", m.recomputed_tokens),
        ("draft tokens verified", m.draft_tokens),
        ("draft tokens accepted", m.accepted_tokens),
        ("preemptions", m.preemptions),
        ("steps", m.steps),
        ("steps beyond what the cost model knows", m.extrapolated_steps),
        ("KV blocks moved between tiers", m.moves),
        ("hand-overs of KV", m.transfers),
        ("bytes of those", m.transfer_bytes),
    ];
    let mut out = String::new();
    for (what, number) in rows {
        let _ = write!(out, "<tr><td>{what}</td><td>{number}</td></tr>");
    }
    if let Some(why) = s.requests.first_rejection {
        let _ = write!(out, "<tr><td>first rejection</td><td>{}</td></tr>", escape(&why));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let ends = [0.3, 1.0, 1.1, 3.0, 70.0, 450.0].map(ceiling);
        assert_eq!(ends.map(|e| format!("{e:.1}")), ["0.5", "1.0", "2.0", "5.0", "100.0", "500.0"]);
        assert_eq!(escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
