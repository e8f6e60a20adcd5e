//! Settings of the commands: groups of flags, the configuration file, and the directories of files.

pub(crate) mod capacity;
pub(crate) mod config;
pub(crate) mod device;
pub(crate) mod dirs;
pub(crate) mod disk_place;
pub(crate) mod domain;
pub(crate) mod home;
pub(crate) mod keep_alive;
pub(crate) mod kv;
pub(crate) mod llama_flags;
pub(crate) mod logging;
pub(crate) mod lora;
pub(crate) mod model;
pub(crate) mod models_dir;
pub(crate) mod remote;
pub(crate) mod retain;
pub(crate) mod sampling;
pub(crate) mod size;
pub(crate) mod template;
