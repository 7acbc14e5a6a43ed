//! Charts as SVG, made on the server. Labels are HTML, so that they keep their size when a chart is narrow.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::text::{Html, escape, number};

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 160.0;

/// A line of a chart.
pub struct Line<'a> {
    /// Its class: its color.
    pub class: &'a str,
    /// What it is, for the legend.
    pub name: &'a str,
    /// A value for each bucket.
    pub values: Vec<f64>,
    /// Whether the area below it is filled.
    pub filled: bool,
}

/// A chart of several lines over time.
pub fn chart(label: &str, begin: SystemTime, bucket: Duration, lines: &[Line], unit: fn(f64) -> String) -> Html {
    let count = lines.first().map_or(0, |line| line.values.len());
    let most = lines
        .iter()
        .flat_map(|line| &line.values)
        .fold(0.0_f64, |a, b| a.max(*b));
    let top = round_up(most);
    let x = |place: usize| WIDTH * place as f64 / (count.max(2) - 1) as f64;
    let y = |value: f64| HEIGHT - 2.0 - (HEIGHT - 4.0) * value / top;
    let mut svg = String::new();
    for part in 1..4 {
        let at = HEIGHT * f64::from(part) / 4.0;
        let _ = write!(svg, "<path class=\"grid\" d=\"M0 {at}H{WIDTH}\"/>");
    }
    for line in lines {
        let points: Vec<String> = (line.values.iter().enumerate())
            .map(|(place, value)| format!("{:.1} {:.1}", x(place), y(*value)))
            .collect();
        let path = points.join("L");
        if line.filled && count > 0 {
            let _ = write!(
                svg,
                "<path class=\"area {}\" d=\"M0 {HEIGHT}L{path}L{WIDTH} {HEIGHT}Z\"/>",
                line.class
            );
        }
        let _ = write!(svg, "<path class=\"line {}\" d=\"M{path}\"/>", line.class);
    }
    let step = WIDTH / count.max(1) as f64;
    for place in 0..count {
        let at = super::text::clock(begin + bucket * u32::try_from(place).unwrap_or(u32::MAX));
        let at: String = at.0.split('>').nth(1).unwrap_or_default().chars().take(5).collect();
        let values: Vec<String> = (lines.iter())
            .map(|line| format!("{} {}", line.name, unit(line.values[place])))
            .collect();
        let _ = write!(
            svg,
            "<rect class=\"hit\" x=\"{:.1}\" y=\"0\" width=\"{step:.1}\" height=\"{HEIGHT}\"><title>{at} UTC: \
             {}</title></rect>",
            step * place as f64,
            escape(&values.join(", "))
        );
    }
    let labels: String = [top, top * 0.75, top * 0.5, top * 0.25, 0.0]
        .iter()
        .map(|value| format!("<span>{}</span>", escape(&unit(*value))))
        .collect();
    let times: String = (0..5)
        .map(|part| {
            let at = begin + bucket * u32::try_from(count * part / 4).unwrap_or(0);
            let iso = crate::read::rfc3339(at);
            let text = iso.get(11..16).unwrap_or_default().to_owned();
            format!("<time datetime=\"{iso}\" data-clock>{text}</time>")
        })
        .collect();
    Html(format!(
        "<div class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">{svg}</svg><div class=\"y\" aria-hidden=\"true\">{labels}</div></div><div class=\"x\" \
         aria-hidden=\"true\">{times}</div>",
        escape(label)
    ))
}

/// As a count.
pub fn count(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 10.0 && v.fract() > 0.01 => format!("{v:.1}"),
        v => number(v.round() as i64),
    }
}

/// As a length of time.
pub fn length(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else {
        super::text::seconds(Some(value))
    }
}

/// 1, 2, 4 or 8 times a power of ten: four grid lines have round labels.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 4.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0]
        .iter()
        .map(|step| step * power)
        .find(|top| *top >= most)
        .unwrap_or(10.0 * power)
}
