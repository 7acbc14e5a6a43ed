//! HTTP: the one server in this code, the JSON API on it, and the pages of `bugle web`.

#[cfg(feature = "cli")]
pub mod access;
#[cfg(feature = "cli")]
mod actions;
pub mod api;
#[cfg(feature = "cli")]
mod bulk;
#[cfg(feature = "cli")]
mod chart;
#[cfg(feature = "cli")]
mod cron;
#[cfg(feature = "cli")]
mod graph;
#[cfg(feature = "cli")]
mod kept;
#[cfg(feature = "cli")]
mod live;
mod openapi;
#[cfg(feature = "cli")]
mod pages;
pub mod server;
#[cfg(feature = "cli")]
pub mod several;
#[cfg(feature = "cli")]
pub mod site;
#[cfg(feature = "cli")]
mod text;
#[cfg(feature = "cli")]
mod waterfall;
