//! Workflows as pictures: jobs in layers from left to right, each after the jobs it needs. SVG, made on the server.

use std::fmt::Write;

use super::text::{Html, escape, shape};

/// A job of the picture.
pub struct Node {
    pub name: String,
    /// A second line.
    pub about: String,
    /// Its state, which is also its class.
    pub state: String,
    pub path: String,
}

/// From a job to one that needs it, by their places.
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// Whether the second job starts even if the first fails.
    pub is_tolerant: bool,
}

const WIDTH: f64 = 188.0;
const HEIGHT: f64 = 54.0;
/// Between layers.
const ACROSS: f64 = 52.0;
/// Between jobs of a layer.
const DOWN: f64 = 18.0;
/// Between lines that pass a layer.
const LANE: f64 = 12.0;
const MARGIN: f64 = 6.0;
const SWEEPS: usize = 8;
/// Letters of a name that fit.
const LETTERS: usize = 22;

/// A job, or a place where a long edge passes a layer.
struct Point {
    layer: usize,
    node: Option<usize>,
    y: f64,
    before: Vec<usize>,
    after: Vec<usize>,
}

impl Point {
    fn height(&self) -> f64 {
        if self.node.is_some() { HEIGHT } else { LANE }
    }
}

/// The picture. Edges must not form a cycle; workflows have none.
pub fn graph(label: &str, nodes: &[Node], edges: &[Edge]) -> Html {
    let (mut points, ways) = points(nodes.len(), edges);
    let mut layers = layers(&points);
    order(&mut points, &mut layers);
    place(&mut points, &layers);
    let right = layers.len() as f64 * (WIDTH + ACROSS) - ACROSS + 2.0 * MARGIN;
    let bottom = points
        .iter()
        .map(|point| point.y + point.height() / 2.0)
        .fold(0.0, f64::max)
        + MARGIN;
    let mut svg = format!(
        "<svg class=\"graph\" width=\"{right:.0}\" height=\"{bottom:.0}\" viewBox=\"0 0 {right:.0} {bottom:.0}\" \
         role=\"group\" aria-label=\"{}\">",
        escape(label)
    );
    for (edge, way) in edges.iter().zip(&ways) {
        let failed = matches!(nodes[edge.from].state.as_str(), "failed" | "cancelled");
        let class = match (failed, nodes[edge.from].state == "completed") {
            (true, _) if !edge.is_tolerant => "edge bad",
            (_, true) => "edge ok",
            _ => "edge",
        };
        let tolerant = if edge.is_tolerant { " dashed" } else { "" };
        let _ = write!(svg, "<path class=\"{class}{tolerant}\" d=\"{}\"/>", curve(&points, way));
    }
    for (number, node) in nodes.iter().enumerate() {
        let (x, y) = (left(points[number].layer), points[number].y - HEIGHT / 2.0);
        let _ = write!(
            svg,
            "<a href=\"{}\" class=\"node {}\"><title>{}: {}, {}</title><rect x=\"{x}\" y=\"{y:.1}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" rx=\"8\"/><text class=\"name\" x=\"{}\" y=\"{:.1}\">{}</text><svg x=\"{}\" \
             y=\"{:.1}\" width=\"10\" height=\"10\" viewBox=\"0 0 10 10\">{}</svg><text x=\"{}\" \
             y=\"{:.1}\">{}</text></a>",
            escape(&node.path),
            escape(&node.state),
            escape(&node.name),
            escape(&node.state),
            escape(&node.about),
            x + 12.0,
            y + 22.0,
            escape(&clipped(&node.name, LETTERS)),
            x + 12.0,
            y + 32.5,
            shape(&node.state),
            x + 28.0,
            y + 41.5,
            escape(&clipped(&node.about, LETTERS + 4)),
        );
    }
    Html(svg + "</svg>")
}

fn clipped(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The jobs come first, in their order, then where long edges pass layers; and the way of each edge.
fn points(jobs: usize, edges: &[Edge]) -> (Vec<Point>, Vec<Vec<usize>>) {
    let mut layer = vec![0; jobs];
    // a longest path has fewer edges than there are jobs
    for _ in 0..jobs {
        let mut is_settled = true;
        for edge in edges {
            if layer[edge.to] <= layer[edge.from] {
                layer[edge.to] = layer[edge.from] + 1;
                is_settled = false;
            }
        }
        if is_settled {
            break;
        }
    }
    let point = |layer, node| Point {
        layer,
        node,
        y: 0.0,
        before: Vec::new(),
        after: Vec::new(),
    };
    let mut points: Vec<Point> = (0..jobs).map(|job| point(layer[job], Some(job))).collect();
    let mut ways = Vec::new();
    for edge in edges {
        let mut way = vec![edge.from];
        for between in layer[edge.from] + 1..layer[edge.to] {
            points.push(point(between, None));
            way.push(points.len() - 1);
        }
        way.push(edge.to);
        for pair in way.windows(2) {
            points[pair[0]].after.push(pair[1]);
            points[pair[1]].before.push(pair[0]);
        }
        ways.push(way);
    }
    (points, ways)
}

fn layers(points: &[Point]) -> Vec<Vec<usize>> {
    let count = points.iter().map(|point| point.layer + 1).max().unwrap_or(0);
    let mut layers = vec![Vec::new(); count];
    for (number, point) in points.iter().enumerate() {
        layers[point.layer].push(number);
    }
    layers
}

/// Put each point of a layer where its neighbors are on average, back and forth: fewer edges cross.
fn order(points: &mut [Point], layers: &mut [Vec<usize>]) {
    let mut rank: Vec<f64> = vec![0.0; points.len()];
    let note = |rank: &mut Vec<f64>, layer: &[usize]| {
        for (place, point) in layer.iter().enumerate() {
            rank[*point] = place as f64;
        }
    };
    layers.iter().for_each(|layer| note(&mut rank, layer));
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        let sequence: Vec<usize> = match forward {
            true => (1..layers.len()).collect(),
            false => (0..layers.len().saturating_sub(1)).rev().collect(),
        };
        for number in sequence {
            let mean = |point: usize| {
                let near = if forward {
                    &points[point].before
                } else {
                    &points[point].after
                };
                match near.is_empty() {
                    true => rank[point],
                    false => near.iter().map(|near| rank[*near]).sum::<f64>() / near.len() as f64,
                }
            };
            let mut keyed: Vec<(f64, usize)> = layers[number].iter().map(|point| (mean(*point), *point)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[number] = keyed.into_iter().map(|(_, point)| point).collect();
            note(&mut rank, &layers[number]);
        }
    }
}

/// Heights: each point as near to its neighbors as the others of its layer allow.
fn place(points: &mut [Point], layers: &[Vec<usize>]) {
    for layer in layers {
        spread(points, layer, &vec![0.0; layer.len()]);
    }
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        let sequence: Vec<usize> = match forward {
            true => (0..layers.len()).collect(),
            false => (0..layers.len()).rev().collect(),
        };
        for number in sequence {
            let wanted: Vec<f64> = (layers[number].iter())
                .map(|point| {
                    let near = if forward {
                        &points[*point].before
                    } else {
                        &points[*point].after
                    };
                    match near.is_empty() {
                        true => points[*point].y,
                        false => near.iter().map(|near| points[*near].y).sum::<f64>() / near.len() as f64,
                    }
                })
                .collect();
            spread(points, &layers[number], &wanted);
        }
    }
    let top = points
        .iter()
        .map(|point| point.y - point.height() / 2.0)
        .fold(f64::MAX, f64::min);
    points.iter_mut().for_each(|point| point.y += MARGIN - top);
}

/// Points of a layer at the wanted heights, but in order and not on top of each other.
fn spread(points: &mut [Point], layer: &[usize], wanted: &[f64]) {
    let mut last: Option<(f64, f64)> = None;
    for (point, wanted) in layer.iter().zip(wanted) {
        let height = points[*point].height();
        let least = last.map(|(y, above)| y + (above + height) / 2.0 + DOWN);
        let y = least.map_or(*wanted, |least| least.max(*wanted));
        points[*point].y = y;
        last = Some((y, height));
    }
    // what was pushed down is shared by all
    let error: f64 = layer
        .iter()
        .zip(wanted)
        .map(|(point, wanted)| points[*point].y - wanted)
        .sum();
    let shift = error / layer.len().max(1) as f64;
    layer.iter().for_each(|point| points[*point].y -= shift);
}

fn left(layer: usize) -> f64 {
    MARGIN + layer as f64 * (WIDTH + ACROSS)
}

fn curve(points: &[Point], way: &[usize]) -> String {
    let first = &points[way[0]];
    let (mut x, mut y) = (left(first.layer) + WIDTH, first.y);
    let mut path = format!("M{x:.1} {y:.1}");
    for number in &way[1..] {
        let to = &points[*number];
        let (half, end) = (ACROSS / 2.0, left(to.layer));
        let (out, into) = (x + half, end - half);
        let _ = write!(path, "C{out:.1} {y:.1} {into:.1} {0:.1} {end:.1} {0:.1}", to.y);
        (x, y) = (end + WIDTH, to.y);
        if to.node.is_none() {
            let _ = write!(path, "H{x:.1}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node {
            name: name.into(),
            about: String::new(),
            state: "ready".into(),
            path: "/".into(),
        }
    }

    fn edge(from: usize, to: usize) -> Edge {
        Edge {
            from,
            to,
            is_tolerant: false,
        }
    }

    #[test]
    fn a_job_is_to_the_right_of_all_it_needs_and_no_two_overlap() {
        // a diamond with a long edge, and a job of its own
        let edges = [edge(0, 1), edge(0, 2), edge(1, 3), edge(2, 3), edge(0, 3), edge(3, 4)];
        let (mut points, ways) = points(6, &edges);
        let mut layers = layers(&points);
        order(&mut points, &mut layers);
        place(&mut points, &layers);

        assert!(edges.iter().all(|edge| points[edge.from].layer < points[edge.to].layer));
        assert_eq!((points[3].layer, points[4].layer, points[5].layer), (2, 3, 0));
        assert_eq!(ways[4].len(), 3, "it passes the layer between");
        for layer in &layers {
            for pair in layer.windows(2) {
                let (above, below) = (&points[pair[0]], &points[pair[1]]);
                assert!(below.y - above.y >= (above.height() + below.height()) / 2.0 + DOWN - 0.01);
            }
        }
        assert!(points.iter().all(|point| point.y >= point.height() / 2.0));
    }

    #[test]
    fn names_are_shown_as_text() {
        let picture = graph("<all>", &[node("<script>"), node(&"é".repeat(100))], &[edge(0, 1)]).0;

        assert!(
            !picture.contains("<script>") && picture.contains("&lt;script&gt;"),
            "{picture}"
        );
        assert!(picture.contains(&format!("{}…<", "é".repeat(LETTERS - 1))), "{picture}");
    }

    #[test]
    fn a_thousand_jobs_in_a_row_are_placed_at_once() {
        let edges: Vec<Edge> = (0..999).map(|job| edge(job, job + 1)).collect();
        let (points, _) = points(1000, &edges);

        assert_eq!(points[999].layer, 999);
    }
}
