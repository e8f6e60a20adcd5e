//! Settings of the commands: groups of flags, the configuration file, and the directories of files.

pub mod capacity;
pub mod device;
pub mod dirs;
pub mod disk_place;
pub mod domain;
pub mod home;
pub mod keep_alive;
pub mod kv;
pub mod logging;
pub mod lora;
pub mod model;
pub mod models_dir;
pub mod remote;
pub mod retain;
pub mod sampling;
pub mod size;
pub mod template;
pub mod told_window;

/// Maximum of a flag in seconds, a year: a deadline so far away is still a time that the clock can represent.
pub const SECONDS_MAX: u64 = 365 * 24 * 3600;
