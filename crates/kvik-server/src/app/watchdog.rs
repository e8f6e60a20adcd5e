//! A thread that monitors the engine: it logs once where a stuck engine stands, and when it resumes; it tells the
//! supervisor that the process is alive as long as its engine is.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kvik_model::pulse::Life;

use super::{
    life::{STUCK_AFTER, is_stuck},
    supervisor::Supervisor,
};

/// Interval between two looks.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Name of the engine's thread.
const ENGINE_THREAD: &str = "kvik-engine";

/// Starts the thread. `look` returns the state of the engine, or `None` once the server stops, which ends the thread.
pub fn start(
    supervisor: Arc<Supervisor>,
    look: impl Fn() -> Option<Life> + Send + 'static,
) -> io::Result<()> {
    let thread = thread::Builder::new().name("kvik-watchdog".to_owned());
    thread.spawn(move || watch(&supervisor, look)).map(drop)
}

fn watch(supervisor: &Supervisor, look: impl Fn() -> Option<Life>) {
    let interval = supervisor.watchdog_interval();
    let pause = interval.map_or(LOOK_TIME, |interval| interval.min(LOOK_TIME));
    let (mut watch, mut looked, mut fed) = (Watch::default(), Instant::now(), None::<Instant>);
    while let Some(life) = look() {
        // If the process itself was suspended for a while, the engine's age is meaningless.
        let was_awake = looked.elapsed() < pause + STUCK_AFTER / 2;
        looked = Instant::now();
        if let Some(words) = watch.see(life).filter(|_| was_awake) {
            tracing::warn!("{words}");
        }
        // The next look is a pause away, so a notification due by then is sent now.
        let is_due = |interval| fed.is_none_or(|fed| fed.elapsed() + pause > interval);
        if interval.is_some_and(is_due) && !is_stuck(life) {
            supervisor.alive();
            fed = Some(looked);
        }
        thread::sleep(pause);
    }
}

/// The last observed state of the engine.
#[derive(Default)]
struct Watch {
    /// Since when it is stuck.
    stuck: Option<Instant>,
}

impl Watch {
    /// The message to log, once an episode.
    fn see(&mut self, life: Life) -> Option<String> {
        match (self.stuck, is_stuck(life)) {
            (None, true) => {
                self.stuck = Instant::now().checked_sub(life.age);
                self.stuck.get_or_insert_with(Instant::now);
                Some(format!(
                    "the engine is stuck: it has work and has not gone on for {:.1} s; it stands in `{}`{}",
                    life.age.as_secs_f64(),
                    life.phase.name(),
                    kernel_view()
                ))
            }
            (Some(since), false) => {
                self.stuck = None;
                Some(format!("the engine goes on after {:.1} s", since.elapsed().as_secs_f64()))
            }
            _ => None,
        }
    }
}

/// The kernel's view of the engine's thread, as far as it is exposed: the function it waits in, its system call and its
/// stack.
fn kernel_view() -> String {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let Some(task) = tasks.map(|task| task.path()).find(|task| read(task.join("comm")) == ENGINE_THREAD)
    else {
        return String::new();
    };
    let facts = ["wchan", "syscall", "stack"].map(|name| (name, read(task.join(name)).replace('\n', " ")));
    let known = facts.iter().filter(|(_, fact)| !fact.is_empty());
    known.map(|(name, fact)| format!("; {name} {fact}")).collect()
}

#[cfg(test)]
mod tests {
    use kvik_model::pulse::Phase;

    use super::*;

    #[test]
    fn an_episode_is_told_once_and_so_is_its_end() {
        let mut watch = Watch::default();
        let at = |seconds| Life { phase: Phase::Compute, age: Duration::from_secs(seconds) };
        assert_eq!(watch.see(at(1)), None);
        let told = watch.see(at(6)).unwrap();
        assert!(told.contains("not gone on for 6.0 s; it stands in `compute`"), "{told}");
        assert_eq!(watch.see(at(7)), None);
        let told = watch.see(at(0)).unwrap();
        assert!(told.starts_with("the engine goes on after 6."), "{told}");
        assert_eq!(watch.see(at(0)), None);
        assert!(watch.see(at(9)).is_some(), "the next episode");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_says_where_a_thread_stands() {
        let (go, hold) = std::sync::mpsc::channel::<()>();
        let thread =
            thread::Builder::new().name(ENGINE_THREAD.to_owned()).spawn(move || hold.recv()).unwrap();
        let started = Instant::now();
        while !kernel_view().contains("syscall") && started.elapsed() < Duration::from_secs(5) {
            thread::yield_now();
        }
        let view = kernel_view();
        drop(go);
        let _ = thread.join();
        assert!(view.contains("; syscall "), "{view:?}");
    }
}
