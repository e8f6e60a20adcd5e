//! The disk tier of the flags: its directory, its size, and the log line when it is unavailable.

use std::path::Path;

use kvik_engine::schedule::disk::{DiskSetup, DiskWrites};
use kvik_engine::stats::DiskRole;
use kvik_session::{DiskTier, KvBudget, open_disk};

use crate::causes::with_causes;
use crate::settings::{model::CacheArgs, size::ByteSize};

/// An open disk tier, or the tier that replaces it.
pub(crate) struct OpenDisk {
    pub(crate) setup: DiskSetup,
    /// Its line in the banner.
    pub(crate) line: String,
}

/// Opens the disk tier of a model that is computed on the device `place`. If that fails, the server runs without it,
/// and the log gives the reason.
pub(crate) fn open(args: &CacheArgs, budget: &KvBudget, model: [u8; 32], place: &str) -> Option<OpenDisk> {
    let dir = args.cache_disk.directory()?;
    match open_in(&dir, args.cache_disk_size, budget, (model, place)) {
        Ok(OpenDisk { setup, line }) => {
            let day_bytes_max = args.cache_disk_write_budget.map(|budget| budget.0);
            let writes = DiskWrites { policy: args.cache_disk_write, day_bytes_max };
            Some(OpenDisk { setup: DiskSetup { writes, ..setup }, line })
        }
        Err(error) => {
            tracing::warn!("serving without a disk cache: {}", with_causes(&error));
            None
        }
    }
}

fn open_in(
    dir: &Path,
    size: ByteSize,
    budget: &KvBudget,
    model: ([u8; 32], &str),
) -> anyhow::Result<OpenDisk> {
    let DiskTier { setup, bytes_max, slots, held, role } =
        open_disk((dir, size.0), budget, model, usize::MAX)?;
    let reads = match role {
        DiskRole::Writer => String::new(),
        DiskRole::Reader { .. } => format!("; {role}, takes over when that ends"),
    };
    let (most, dir) = (ByteSize(bytes_max), dir.display());
    let line = format!("up to {most} in {dir}, {held} of {slots} blocks held{reads}");
    Ok(OpenDisk { setup, line })
}
