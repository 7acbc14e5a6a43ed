//! The seeds of what is chosen at random.

/// The same in every run, so that a change is to blame for a failure, not luck. The variable names another one, or says
/// `random`: that is how one hunts.
pub fn seed(variable: &str) -> u64 {
    let seed = match std::env::var(variable).as_deref() {
        Ok("random") => fastrand::u64(1..1_000_000),
        Ok(number) => number.parse().expect("a number, or `random`"),
        Err(_) => 1,
    };
    println!("{variable}={seed}");
    seed
}
