//! Charts as SVG, made on the server. Labels are HTML, so that they keep their size when a chart is narrow.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::text::{Form, Html, at, escape, number};

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 160.0;
/// A value this many times the 95th percentile of all is cut off: it would flatten the others.
const SPIKE: f64 = 8.0;

/// A line of a chart.
pub struct Line<'a> {
    /// Its class: its color.
    pub class: &'a str,
    /// What it is, for the legend.
    pub name: &'a str,
    /// A value for each bucket. There is none if nothing was measured: the line has a gap there.
    pub values: Vec<Option<f64>>,
    /// Whether the area below it is filled.
    pub filled: bool,
}

/// A chart of several lines over time. The last bucket is not over yet: what leads to it is dashed.
pub fn chart(label: &str, begin: SystemTime, bucket: Duration, lines: &[Line], unit: fn(f64) -> String) -> Html {
    let count = lines.first().map_or(0, |line| line.values.len());
    let (top, peak) = scale(lines);
    let step = WIDTH / count.max(1) as f64;
    let x = |place: usize| step * (place as f64 + 0.5);
    let y = |value: f64| HEIGHT - 2.0 - (HEIGHT - 4.0) * value.min(top) / top;
    let mut svg = String::new();
    for part in 1..4 {
        let at = HEIGHT * f64::from(part) / 4.0;
        let _ = write!(svg, "<path class=\"grid\" d=\"M0 {at}H{WIDTH}\"/>");
    }
    for line in lines {
        // runs of buckets with values
        let mut runs: Vec<Vec<(usize, f64)>> = vec![Vec::new()];
        for (place, value) in line.values.iter().enumerate() {
            match (value, runs.last_mut()) {
                (Some(value), Some(run)) => run.push((place, *value)),
                (None, Some(run)) if !run.is_empty() => runs.push(Vec::new()),
                _ => {}
            }
        }
        let point = |(place, value): &(usize, f64)| format!("{:.1} {:.1}", x(*place), y(*value));
        for run in runs.iter().filter(|run| !run.is_empty()) {
            let is_last = run.last().is_some_and(|(place, _)| place + 1 == count);
            let (whole, rest) = run.split_at(run.len() - usize::from(is_last));
            let points: Vec<String> = whole.iter().map(point).collect();
            if let [(first, _), .., (last, _)] = whole
                && line.filled
            {
                let _ = write!(
                    svg,
                    "<path class=\"area {}\" d=\"M{:.1} {HEIGHT}L{}L{:.1} {HEIGHT}Z\"/>",
                    line.class,
                    x(*first),
                    points.join("L"),
                    x(*last)
                );
            }
            match points.as_slice() {
                [] => {}
                [one] => {
                    let _ = write!(svg, "<path class=\"line dot {}\" d=\"M{one}h.01\"/>", line.class);
                }
                many => {
                    let _ = write!(svg, "<path class=\"line {}\" d=\"M{}\"/>", line.class, many.join("L"));
                }
            }
            if let [now] = rest {
                let from = points.last().map_or_else(
                    || format!("{}h.01", point(now)),
                    |from| format!("{from}L{}", point(now)),
                );
                let _ = write!(svg, "<path class=\"line part {}\" d=\"M{from}\"/>", line.class);
            }
        }
        for (place, value) in line.values.iter().enumerate() {
            if value.is_some_and(|value| value > top) {
                let _ = write!(
                    svg,
                    "<path class=\"line cut {}\" d=\"M{:.1} 2h.01\"/>",
                    line.class,
                    x(place)
                );
            }
        }
    }
    svg.push_str("<path class=\"cursor\" d=\"M0 0V160\"/>");
    let said: Vec<String> = (lines.iter())
        .map(|line| {
            let values: Vec<String> = line
                .values
                .iter()
                .map(|value| value.map(unit).unwrap_or_default())
                .collect();
            format!("{}:{}", line.name, values.join(";"))
        })
        .collect();
    // without a value there is nothing to measure
    let has_values = lines.iter().any(|line| line.values.iter().any(Option::is_some));
    let labels: String = [top, top * 0.75, top * 0.5, top * 0.25, 0.0]
        .iter()
        .filter(|_| has_values)
        .map(|value| format!("<span>{}</span>", escape(&unit(*value))))
        .collect();
    let peak = peak.map_or_else(String::new, |peak| {
        format!("<small class=\"peak\">peak {}, cut off</small>", unit(peak))
    });
    let form = match bucket.as_secs() * count as u64 {
        s if s < 80_000 => Form::Minute,
        s if s < 200_000 => Form::Weekday,
        _ => Form::Day,
    };
    let times: String = (0..5)
        .map(|part| at(begin + bucket * u32::try_from(count * part / 4).unwrap_or(0), form).0)
        .collect();
    let begins = begin
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    Html(format!(
        "<div class=\"chart\" data-begin=\"{begins}\" data-bucket=\"{}\" data-says=\"{}\"><svg viewBox=\"0 0 {WIDTH} \
         {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{svg}</svg><div class=\"y\" \
         aria-hidden=\"true\">{labels}</div>{peak}</div><div class=\"x\" aria-hidden=\"true\">{times}</div>",
        bucket.as_secs(),
        escape(&said.join("|")),
        escape(label)
    ))
}

/// A line without labels, for a figure or a row of a table.
pub fn spark(values: &[Option<f64>], class: &str) -> Html {
    let most = values.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
    if values.len() < 2 || most <= 0.0 {
        return Html::default();
    }
    let mut path = String::new();
    let mut is_down = false;
    for (place, value) in values.iter().enumerate() {
        match value {
            Some(value) => {
                let x = 120.0 * place as f64 / (values.len() - 1) as f64;
                let _ = write!(
                    path,
                    "{}{x:.0} {:.1}",
                    if is_down { "L" } else { "M" },
                    22.0 - 20.0 * value / most
                );
                is_down = true;
            }
            None => is_down = false,
        }
    }
    Html(format!(
        "<svg class=\"spark\" viewBox=\"0 0 120 24\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path \
         class=\"line {class}\" d=\"{path}\"/></svg>"
    ))
}

/// The value at the top, and the peak if it is above that.
fn scale(lines: &[Line]) -> (f64, Option<f64>) {
    let mut values: Vec<f64> = lines
        .iter()
        .flat_map(|line| line.values.iter().flatten().copied())
        .collect();
    values.sort_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or_default();
    let usual = values
        .get(values.len().saturating_sub(1) * 95 / 100)
        .copied()
        .unwrap_or_default();
    match usual > 0.0 && values.len() >= 20 && most > usual * SPIKE {
        true => (round_up(usual * 1.5), Some(most)),
        false => (round_up(most), None),
    }
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

/// As a share, in percent.
pub fn share(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 0.1 => format!("{:.1} %", v * 100.0),
        v => format!("{:.0} %", v * 100.0),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(values: Vec<Option<f64>>) -> String {
        let line = Line {
            class: "accent",
            name: "done",
            values,
            filled: true,
        };
        chart("x", SystemTime::UNIX_EPOCH, Duration::from_secs(60), &[line], count).0
    }

    #[test]
    fn what_was_not_measured_is_a_gap_and_the_last_bucket_is_dashed() {
        let svg = drawn(vec![Some(1.0), Some(2.0), None, Some(3.0), Some(4.0)]);

        assert_eq!(svg.matches("class=\"area").count(), 1, "{svg}");
        assert_eq!(svg.matches("class=\"line dot").count(), 1, "{svg}");
        assert_eq!(svg.matches("class=\"line part").count(), 1, "{svg}");
        assert!(svg.contains("data-says=\"done:1;2;;3;4\""), "{svg}");
    }

    #[test]
    fn a_spike_is_cut_off_and_named() {
        let mut values = vec![Some(10.0); 60];
        values[7] = Some(5000.0);
        let svg = drawn(values);

        assert!(svg.contains("peak 5,000, cut off"), "{svg}");
        assert!(svg.contains("<span>20</span>"), "{svg}");
    }
}
