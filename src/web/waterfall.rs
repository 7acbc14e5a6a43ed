//! Bars over time: what ran when, one below the other. Each row is a row of a table, and its bar SVG.

use std::time::SystemTime;

use super::text::{Html, escape};

const WIDTH: f64 = 1000.0;
/// What took less is drawn as wide as this.
const LEAST: f64 = 4.0;

/// Something that ran, or runs still.
pub struct Bar {
    pub label: Html,
    /// Its state, which is also its class.
    pub state: Html,
    pub class: String,
    pub begin: Option<SystemTime>,
    pub end: Option<SystemTime>,
    pub took: String,
    pub about: String,
    /// How deep it is below the job.
    pub depth: usize,
}

/// A row with its bar drawn.
pub struct Drawn {
    pub label: Html,
    pub state: Html,
    pub bar: Html,
    pub took: String,
    pub about: String,
    pub depth: usize,
}

/// All bars on one scale, from the first begin to the last end, or to now if something runs; and that scale.
pub fn waterfall(bars: Vec<Bar>, now: SystemTime) -> (Vec<Drawn>, Html) {
    let begin = bars.iter().filter_map(|bar| bar.begin).min();
    let end = bars
        .iter()
        .filter(|bar| bar.begin.is_some())
        .map(|bar| bar.end.unwrap_or(now))
        .max();
    let (begin, end) = (begin.unwrap_or(now), end.unwrap_or(now));
    let all = end.duration_since(begin).unwrap_or_default().as_secs_f64().max(0.001);
    let place = |at: SystemTime| {
        let from = at.duration_since(begin).unwrap_or_default().as_secs_f64();
        (WIDTH * from / all).min(WIDTH)
    };
    let draw = |bar: &Bar| {
        let Some(from) = bar.begin else {
            return Html::default();
        };
        let to = bar.end.unwrap_or(now).max(from);
        let width = (place(to) - place(from)).max(LEAST);
        let x = place(from).min(WIDTH - width);
        Html(format!(
            "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path \
             class=\"track\" d=\"M0 5H{WIDTH}M250 0v10M500 0v10M750 0v10\"/><rect class=\"{}\" x=\"{x:.1}\" y=\"0\" \
             width=\"{width:.1}\" height=\"10\"/></svg>",
            escape(&bar.class)
        ))
    };
    let drawn: Vec<Html> = bars.iter().map(draw).collect();
    let axis: String = [0.0, 0.25, 0.5, 0.75, 1.0]
        .iter()
        .map(|part| format!("<span>{}</span>", super::chart::length(all * part)))
        .collect();
    let bars = bars
        .into_iter()
        .zip(drawn)
        .map(|(bar, drawn)| Drawn {
            label: bar.label,
            state: bar.state,
            bar: drawn,
            took: bar.took,
            about: bar.about,
            depth: bar.depth,
        })
        .collect();
    (bars, Html(format!("<span class=\"axis\">{axis}</span>")))
}

/// Parts of a whole, side by side: how many are in each state.
pub fn shares(parts: &[(String, i64)]) -> Html {
    let all: i64 = parts.iter().map(|(_, count)| *count).sum();
    let mut x = 0.0;
    let mut svg = format!(
        "<svg class=\"bar shares\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" \
        aria-hidden=\"true\">"
    );
    for (state, count) in parts {
        let width = WIDTH * *count as f64 / all.max(1) as f64;
        svg.push_str(&format!(
            "<rect class=\"{}\" x=\"{x:.1}\" y=\"0\" width=\"{width:.1}\" height=\"10\"/>",
            escape(state)
        ));
        x += width;
    }
    Html(svg + "</svg>")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bars_share_a_scale_and_what_has_not_begun_has_none() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let bar = |begin: Option<u64>, end: Option<u64>| Bar {
            label: Html::default(),
            state: Html::default(),
            class: "done".into(),
            begin: begin.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at)),
            end: end.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at)),
            took: String::new(),
            about: String::new(),
            depth: 0,
        };
        let (drawn, axis) = waterfall(vec![bar(Some(0), Some(25)), bar(Some(50), None), bar(None, None)], now);

        assert!(
            drawn[0].bar.0.contains("x=\"0.0\" y=\"0\" width=\"250.0\""),
            "{}",
            drawn[0].bar.0
        );
        assert!(
            drawn[1].bar.0.contains("x=\"500.0\" y=\"0\" width=\"500.0\""),
            "{}",
            drawn[1].bar.0
        );
        assert_eq!(drawn[2].bar.0, "");
        assert!(axis.0.contains("<span>0</span><span>25 s</span>"), "{}", axis.0);
    }
}
