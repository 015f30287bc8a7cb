//! The answer as a table and as a page: no scripts, nothing from elsewhere, charts as SVG.

use std::fmt::Write as _;

use super::{
    answer::{Plan, Point},
    config::Objective,
};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1d2733;--paper:#fff;--faint:#7a8694;--line:#d8dee5;--a:#2468a8;--b:#c46a1f}
@media (prefers-color-scheme:dark){:root{--ink:#dfe6ee;--paper:#14191f;--faint:#93a0ae;--line:#333d48;--a:#6fb1ee;--b:#eaa160}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin:2rem 0 .4rem}.sub{color:var(--faint);margin-top:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--faint);font-weight:500}code{font-size:.85rem;white-space:pre-wrap}
svg{width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
";

/// Columns of the table: a name, and the value of a point.
type Column = (&'static str, fn(&Point) -> String);

const COLUMNS: [Column; 20] = [
    ("configuration", |p| p.what.clone()),
    ("site", |p| p.configuration.site.clone()),
    ("devices", |p| p.configuration.devices.to_string()),
    ("replications", |p| p.replications.to_string()),
    ("good_share", |p| p.figures.good_share.mean.to_string()),
    ("ttft_p99_ms", |p| p.figures.ttft_p99_ms.mean.to_string()),
    ("ttft_p99_ms_half_width", |p| p.figures.ttft_p99_ms.half_width.to_string()),
    ("tpot_p99_ms", |p| p.figures.tpot_p99_ms.mean.to_string()),
    ("tpot_p99_ms_half_width", |p| p.figures.tpot_p99_ms.half_width.to_string()),
    ("e2e_p99_ms", |p| p.figures.e2e_p99_ms.mean.to_string()),
    ("cost_per_hour", |p| p.figures.cost_per_hour.mean.to_string()),
    ("cost_per_mtok", |p| p.figures.cost_per_mtok.mean.to_string()),
    ("joules_per_token", |p| p.figures.joules_per_token.mean.to_string()),
    ("gco2_per_mtok", |p| p.figures.gco2_per_mtok.mean.to_string()),
    ("litres_per_mtok", |p| p.figures.litres_per_mtok.mean.to_string()),
    ("facility_watts", |p| p.figures.facility_watts.mean.to_string()),
    ("tokens_per_s", |p| p.figures.tokens_per_s.mean.to_string()),
    ("busy_share", |p| p.figures.busy_share.to_string()),
    ("kv_mean_use", |p| p.figures.kv_mean_use.to_string()),
    ("bound_by", |p| p.binding.resource.to_string()),
];

/// The front as comma-separated values (RFC 4180), one line a point.
pub fn csv(plan: &Plan) -> String {
    let quoted = |text: &str| {
        if text.contains([',', '"', '\n']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.to_string()
        }
    };
    let mut out = COLUMNS.map(|c| c.0).join(",") + "\n";
    for point in &plan.front {
        out += &(COLUMNS.map(|c| quoted(&c.1(point))).join(",") + "\n");
    }
    out
}

/// A page about a plan.
pub fn html(plan: &Plan) -> String {
    let title = escape(if plan.name.is_empty() { "Plan" } else { &plan.name });
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1><p class=\"sub\">{:.2} requests a second; \
         {} configurations, {} simulated in {} runs{}</p>",
        plan.rate_per_s,
        plan.candidates,
        plan.simulated,
        plan.simulations,
        if plan.stopped_early { "; stopped early" } else { "" }
    );
    if let Some(refused) = &plan.refused {
        let _ =
            write!(out, "<h2>No configuration keeps the goals</h2><p>{}</p>", escape(&refused.why));
        if let Some(nearest) = &refused.nearest {
            table(&mut out, std::slice::from_ref(nearest));
            goals(&mut out, nearest);
        }
    } else {
        if let Some(fewest) = &plan.smallest {
            let _ = write!(
                out,
                "<p>Smallest cluster: <b>{}</b> ({} devices)</p>",
                escape(&fewest.what),
                fewest.configuration.devices
            );
        }
        out.push_str("<h2>Configurations that no other beats</h2>");
        table(&mut out, &plan.front);
        chart(&mut out, plan);
        for point in plan.front.iter().take(3) {
            goals(&mut out, point);
        }
    }
    if !plan.pruned.is_empty() {
        out.push_str("<h2>Ruled out without simulation</h2><table><tr><th>by</th><th>configurations</th></tr>");
        for (goal, count) in &plan.pruned {
            let _ = write!(out, "<tr><td>{goal}</td><td>{count}</td></tr>");
        }
        out.push_str("</table>");
    }
    out.push_str("</body></html>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(out: &mut String, points: &[Point]) {
    out.push_str(
        "<table><tr><th></th><th>good</th><th>TTFT p99, ms</th><th>TPOT p99, ms</th><th>cost/h</th>\
         <th>cost/Mtok</th><th>J/token</th><th>gCO2/Mtok</th><th>l/Mtok</th><th>busy</th><th>bound by</th></tr>",
    );
    for p in points {
        let f = &p.figures;
        let with = |e: &crate::stats::Estimate| {
            let width = if e.half_width.is_finite() {
                format!(" ± {:.1}", e.half_width)
            } else {
                String::new()
            };
            format!("{:.1}{width}", e.mean)
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{:.2}%</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.3}</td>\
             <td>{:.3}</td><td>{:.2}</td><td>{:.2}</td><td>{:.0}%</td><td>{}</td></tr>",
            escape(&p.what),
            f.good_share.mean * 100.0,
            with(&f.ttft_p99_ms),
            with(&f.tpot_p99_ms),
            f.cost_per_hour.mean,
            f.cost_per_mtok.mean,
            f.joules_per_token.mean,
            f.gco2_per_mtok.mean,
            f.litres_per_mtok.mean,
            f.busy_share * 100.0,
            p.binding.resource
        );
    }
    out.push_str("</table>");
}

fn goals(out: &mut String, point: &Point) {
    let _ = write!(
        out,
        "<h2>{}</h2><p><code>{}</code></p><table><tr><th>goal</th><th>limit</th><th>found</th><th>used</th></tr>",
        escape(&point.what),
        escape(&point.launch.join("\n"))
    );
    for g in &point.goals {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{:.4}</td><td>{:.0}%{}</td></tr>",
            g.goal,
            g.limit,
            g.found.mean,
            g.used * 100.0,
            if g.holds { "" } else { " (broken)" }
        );
    }
    out.push_str("</table>");
}

/// The front in its first two objectives, with confidence intervals.
fn chart(out: &mut String, plan: &Plan) {
    let [x, y] = match plan.objectives[..] {
        [x, y, ..] => [x, y],
        _ => return,
    };
    let name = |o: Objective| format!("{o:?}").to_lowercase();
    let (nx, ny) = (name(x), name(y));
    let of = |p: &Point, n: &str| p.objectives.get(n).copied().unwrap_or_default();
    let most =
        |n: &str| plan.front.iter().map(|p| of(p, n).mean).fold(0.0, f64::max).max(1e-9) * 1.1;
    let (mx, my) = (most(&nx), most(&ny));
    let px = |v: f64| 60.0 + 680.0 * (v / mx).clamp(0.0, 1.0);
    let py = |v: f64| 205.0 - 190.0 * (v / my).clamp(0.0, 1.0);
    let _ = write!(out, "<svg viewBox=\"0 0 760 240\" role=\"img\" aria-label=\"{ny} over {nx}\">");
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let (vx, vy) = (mx * part, my * part);
        let _ = write!(
            out,
            "<line x1=\"60\" x2=\"740\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--line)\"/>\
             <text x=\"54\" y=\"{1:.1}\" text-anchor=\"end\">{2}</text>\
             <text x=\"{3:.1}\" y=\"220\" text-anchor=\"middle\">{4}</text>",
            py(vy),
            py(vy) + 4.0,
            short(vy),
            px(vx),
            short(vx)
        );
    }
    for p in &plan.front {
        let (ex, ey) = (of(p, &nx), of(p, &ny));
        if ey.half_width.is_finite() {
            let _ = write!(
                out,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"var(--a)\"/>",
                px(ex.mean),
                py(ey.low()),
                py(ey.high())
            );
        }
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"var(--a)\"><title>{}</title></circle>",
            px(ex.mean),
            py(ey.mean),
            escape(&p.what)
        );
    }
    let _ = write!(
        out,
        "<text x=\"400\" y=\"236\" text-anchor=\"middle\">{nx}</text><text x=\"60\" y=\"11\">{ny}</text></svg>"
    );
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}
