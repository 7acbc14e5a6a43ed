//! Flags whose values are those of an enum of the library.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::error::Error;

/// Reads one of `all`, and lists how they are spelled in the help text.
pub fn spellings<T, const N: usize>(all: [T; N], spelling: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = Error> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(spelling)).try_map(|text| text.parse::<T>())
}
