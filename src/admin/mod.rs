//! Administration: queries, the operator's verbs and the doctor.

mod doctor;
pub mod operate;
pub mod operations;
pub mod read;
