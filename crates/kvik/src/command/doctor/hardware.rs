//! Checks of processor, memory, huge pages and GPU, and the choices that the server makes by them.

use std::{fs, path::Path, thread::available_parallelism, time::Duration};

use kvik_engine::free_memory::MachineMemory;
use kvik_kernels::{
    Isa, Pool, PoolError, bound_memory_domains, memory_domains, performance_cores, read_speed,
};

use super::{domains, report::Diagnosis};
use kvik_serving::{
    budget::kv_bytes,
    causes::with_causes,
    device,
    settings::{
        device::DeviceChoice,
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// Duration of the measurement of memory speed.
const READ_TIME: Duration = Duration::from_secs(1);
/// Memory that is read: several times the last-level cache of most processors, and at most a fraction of the free
/// memory.
const READ_BYTES: u64 = 512 << 20;
const READ_SHARE: u64 = 4;
/// Size of the model in the explanation of memory speed.
const EXAMPLE_BYTES: u64 = 4 << 30;
/// Free memory below which most models do not fit.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// The kernel's setting of transparent huge pages.
const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";

/// All of these checks, with `root` as the root of `/proc` and `/sys`.
pub(super) fn all(model: &ModelArgs, cache: &CacheArgs, root: &Path) -> Vec<Diagnosis> {
    // Comes first: the following measurements run in the chosen domain.
    let domains = domains::check(model.domain, &memory_domains(), bound_memory_domains().as_deref(), root);
    let memory = MachineMemory::read(root);
    let (processor, memory_speed) = match model.pool() {
        Ok(pool) => (processor(&pool, root), Some(memory_speed(&pool, memory))),
        Err(error) => (no_threads(&error), None),
    };
    let found = [
        domains,
        Some(processor),
        Some(instructions(Isa::chosen().map_err(|error| error.to_string()))),
        Some(memory.map_or_else(unknown_memory, |memory| free_memory(memory, cache))),
        memory_speed,
        huge_pages(root),
        Some(gpu(cache)),
    ];
    found.into_iter().flatten().collect()
}

fn processor(pool: &Pool, root: &Path) -> Diagnosis {
    let available = available_parallelism().map_or(1, usize::from);
    let (threads, fast) = (pool.threads(), performance_cores());
    let name = processor_name(root).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let found =
        format!("{name}; of {available} processors {fast} are fast cores, and {threads} threads compute");
    let diagnosis = match threads > available {
        false => Diagnosis::ok("processor", found),
        true => Diagnosis::note(
            "processor",
            found,
            format!("threads wait for each other; --threads {fast} is faster"),
        ),
    };
    diagnosis.with("processors", available).with("performance_cores", fast).with("threads", threads)
}

fn no_threads(error: &PoolError) -> Diagnosis {
    let remedy = format!("--threads {} is the fastest", performance_cores());
    Diagnosis::wrong("processor", error.to_string(), remedy)
}

/// Linux's name of the first processor.
fn processor_name(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The chosen kernels, or why none can be chosen.
fn instructions(chosen: Result<Isa, String>) -> Diagnosis {
    const SUBJECT: &str = "instructions";
    match chosen {
        Err(error) => Diagnosis::wrong(SUBJECT, error, "unset KVIK_ISA for the best of this machine"),
        Ok(Isa::Scalar) => Diagnosis::note(
            SUBJECT,
            "scalar: none of those that kvik has kernels for",
            "unset KVIK_ISA if it is set; fast are processors with AVX2 (2013), better AVX-512, or NEON with dot products",
        ),
        Ok(isa) => Diagnosis::ok(SUBJECT, isa.name()).with("isa", isa.name()),
    }
}

fn unknown_memory() -> Diagnosis {
    Diagnosis::note(
        "memory",
        "the system does not say how much is free",
        "set --cache-ram to what kvik may have",
    )
}

/// The free memory, and the share of keys and values in it.
fn free_memory(memory: MachineMemory, cache: &CacheArgs) -> Diagnosis {
    const SUBJECT: &str = "memory";
    let MachineMemory { total_bytes, available_bytes, limit_bytes } = memory;
    let asked = kv_bytes(cache.cache_ram, 1);
    let limit = limit_bytes
        .map_or_else(String::new, |limit| format!(", and a limit of {} on this process", ByteSize(limit)));
    let found = format!(
        "{} of {} are free{limit}; keys and values may take {}",
        ByteSize(available_bytes),
        ByteSize(total_bytes),
        ByteSize(asked)
    );
    let diagnosis = if asked > available_bytes {
        let most = ByteSize((available_bytes / 2).max(1));
        Diagnosis::wrong(
            SUBJECT,
            found,
            format!("lower --cache-ram to {most} or less, which leaves room for the weights"),
        )
    } else if available_bytes < FREE_BYTES_MIN {
        Diagnosis::note(
            SUBJECT,
            found,
            "few models fit; close other programs, or give this container more memory",
        )
    } else {
        Diagnosis::ok(SUBJECT, found)
    };
    let diagnosis =
        limit_bytes.into_iter().fold(diagnosis, |diagnosis, limit| diagnosis.with("limit_bytes", limit));
    diagnosis
        .with("total_bytes", total_bytes)
        .with("available_bytes", available_bytes)
        .with("cache_bytes", asked)
}

/// Speed of reading weights, which bounds decoding.
fn memory_speed(pool: &Pool, memory: Option<MachineMemory>) -> Diagnosis {
    const SUBJECT: &str = "memory speed";
    let bytes = memory.map_or(READ_BYTES, |memory| READ_BYTES.min(memory.available_bytes / READ_SHARE));
    match read_speed(pool, usize::try_from(bytes).unwrap_or(usize::MAX), READ_TIME) {
        Ok(speed) => {
            let tokens = speed / EXAMPLE_BYTES as f64;
            let (gigabytes, example) = (speed / 1e9, ByteSize(EXAMPLE_BYTES));
            let found = format!(
                "{gigabytes:.1} GB/s: one answer of a dense model of {example} comes at {tokens:.1} tokens/s at most"
            );
            Diagnosis::ok(SUBJECT, found).with("read_bytes_per_s", speed.round() as u64)
        }
        Err(error) => {
            let found = format!("not measured: {error}");
            Diagnosis::note(SUBJECT, found, format!("free {} of memory", ByteSize(bytes)))
        }
    }
}

/// Whether the kernel gives huge pages to memory that requests them; `None` if there is no such setting.
fn huge_pages(root: &Path) -> Option<Diagnosis> {
    const SUBJECT: &str = "huge pages";
    let text = fs::read_to_string(root.join(HUGE_PAGES)).ok()?;
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
    Some(match chosen {
        "never" => Diagnosis::note(
            SUBJECT,
            "off: up to a fifth of the speed of memory is lost",
            format!("echo madvise | sudo tee /{HUGE_PAGES}"),
        ),
        chosen => Diagnosis::ok(SUBJECT, format!("{chosen}: weights and the cache have them")),
    })
}

/// The device that models are computed on.
fn gpu(cache: &CacheArgs) -> Diagnosis {
    match device::choice(cache) {
        Ok(choice) => on_device(choice),
        Err(error) => Diagnosis::wrong("gpu", with_causes(&error), "leave one of the two flags out"),
    }
}

#[cfg(feature = "gpu")]
fn on_device(choice: DeviceChoice) -> Diagnosis {
    use kvik_model::device::{Choice, Device};
    const SUBJECT: &str = "gpu";
    let (choice, is_asked) = match choice {
        DeviceChoice::Cpu => {
            return Diagnosis::ok(SUBJECT, "not used: what the flags ask for is computed on the processor");
        }
        DeviceChoice::Auto => (Choice::Auto, false),
        DeviceChoice::Gpu(number) => (number.map_or(Choice::Auto, Choice::Index), true),
    };
    match Device::open(choice) {
        Ok(device) => {
            let info = device.info();
            let found = format!(
                "{} by {}, {}; models are computed on it where it can",
                info.name, info.backend, info.driver
            );
            Diagnosis::ok(SUBJECT, found).with("name", info.name.clone()).with("index", info.index)
        }
        Err(error) if is_asked => Diagnosis::wrong(
            SUBJECT,
            error.to_string(),
            "`kvik devices` lists those there are; --device cpu needs none",
        ),
        Err(error) => Diagnosis::ok(SUBJECT, format!("{error}; models are computed on the processor")),
    }
}

#[cfg(not(feature = "gpu"))]
fn on_device(choice: DeviceChoice) -> Diagnosis {
    const FOUND: &str = "this kvik was built without GPUs; models are computed on the processor";
    match choice {
        DeviceChoice::Gpu(_) => Diagnosis::wrong(
            "gpu",
            FOUND,
            "leave --device out, or build with `cargo build --release --features gpu`",
        ),
        DeviceChoice::Cpu | DeviceChoice::Auto => Diagnosis::ok("gpu", FOUND),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    /// A root directory with this text in one file, and nothing else.
    fn kernel(path: &str, text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        root
    }

    #[test]
    fn huge_pages_that_are_off_are_told_with_the_remedy() {
        let check = |text: &str, expect: Option<Verdict>| {
            let found = huge_pages(kernel(HUGE_PAGES, text).path());
            assert_eq!(found.as_ref().map(|found| found.verdict), expect, "{text}");
            let remedy = found.and_then(|found| found.remedy);
            assert_eq!(
                remedy.is_some_and(|remedy| remedy.contains("madvise")),
                expect == Some(Verdict::Note)
            );
        };
        check("always [madvise] never\n", Some(Verdict::Ok));
        check("[always] madvise never\n", Some(Verdict::Ok));
        check("always madvise [never]\n", Some(Verdict::Note));
        check("\n", None);
        assert_eq!(huge_pages(tempfile::tempdir().unwrap().path()), None, "a kernel without them");
    }

    #[test]
    fn the_processor_has_the_name_that_the_kernel_gives() {
        let root =
            kernel("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Fast One: 9000\nmodel name\t: B\n");
        assert_eq!(processor_name(root.path()).as_deref(), Some("A Fast One: 9000"));
        assert_eq!(processor_name(kernel("proc/cpuinfo", "Features: fp asimd\n").path()), None);
        let found = processor(&Pool::new(2), root.path());
        assert!(found.found.starts_with("A Fast One: 9000; of "), "{}", found.found);
        assert_eq!(found.figures["threads"], 2);
    }

    #[test]
    fn more_threads_than_processors_are_told() {
        let available = available_parallelism().map_or(1, usize::from);
        let check = |threads, expect| {
            assert_eq!(processor(&Pool::new(threads), Path::new("/")).verdict, expect, "{threads}");
        };
        check(available, Verdict::Ok);
        check(available + 1, Verdict::Note);
    }

    #[test]
    fn more_threads_than_start_are_wrong() {
        let error = Pool::start(usize::MAX).unwrap_err();
        assert_eq!(no_threads(&error).verdict, Verdict::Wrong);
    }

    #[test]
    fn a_wrong_choice_of_instructions_is_wrong_and_the_slowest_is_told() {
        assert_eq!(instructions(Err("KVIK_ISA is \"sse\"".to_owned())).verdict, Verdict::Wrong);
        assert_eq!(instructions(Ok(Isa::Scalar)).verdict, Verdict::Note);
        assert_eq!(instructions(Ok(Isa::Avx2)).verdict, Verdict::Ok);
    }

    #[test]
    fn a_cache_larger_than_the_free_memory_is_wrong() {
        let check = |free: u64, asked: u64, limit_bytes: Option<u64>, expect: Verdict| {
            let memory = MachineMemory { total_bytes: 64 << 30, available_bytes: free, limit_bytes };
            let found = free_memory(memory, &CacheArgs::in_ram(64, ByteSize(asked)));
            assert_eq!(found.verdict, expect, "{free} {asked}");
            assert_eq!(found.found.contains("limit"), limit_bytes.is_some());
            assert_eq!(found.figures["cache_bytes"], asked);
        };
        check(8 << 30, 8 << 30, None, Verdict::Ok);
        check(8 << 30, (8 << 30) + 1, None, Verdict::Wrong);
        check(8 << 30, 1 << 20, Some(9 << 30), Verdict::Ok);
        check(512 << 20, 1 << 20, Some(600 << 20), Verdict::Note);
        check(0, 1, None, Verdict::Wrong);
    }

    #[test]
    fn a_gpu_that_is_asked_for_must_be_there() {
        assert_eq!(on_device(DeviceChoice::Cpu).verdict, Verdict::Ok);
        assert_eq!(on_device(DeviceChoice::Auto).verdict, Verdict::Ok);
        assert_eq!(on_device(DeviceChoice::Gpu(Some(999))).verdict, Verdict::Wrong);
    }
}
