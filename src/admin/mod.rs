//! What people ask and do: read, operate, and the doctor.

mod doctor;
pub mod operate;
pub mod read;
