//! The metrics about a process that every Prometheus client exports, from /proc. Other systems have none.

use rustix::process::{Resource, getrlimit};

/// Names and values.
pub fn metrics() -> Vec<(&'static str, f64)> {
    let mut found = Vec::new();
    if let Some(used) = used() {
        found.extend(used);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // one of them reads this list
        found.push(("process_open_fds", open.count().saturating_sub(1) as f64));
        if let Some(most) = getrlimit(Resource::Nofile).current {
            found.push(("process_max_fds", most as f64));
        }
    }
    found
}

fn used() -> Option<[(&'static str, f64); 4]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // the name of the program, in parentheses, may contain anything
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // numbered as in proc(5), where the state is the third
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as f64;
    let boot = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = boot
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse::<f64>()
        .ok()?;
    Some([
        ("process_cpu_seconds_total", (field(14)? + field(15)?) / ticks),
        ("process_resident_memory_bytes", field(24)? * page),
        ("process_virtual_memory_bytes", field(23)?),
        ("process_start_time_seconds", boot + field(22)? / ticks),
    ])
}
