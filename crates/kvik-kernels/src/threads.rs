//! The thread pool: persistent workers that share the tasks of one job at a time.
//!
//! A token needs a few hundred short jobs, so workers spin for a moment between them and park only when no job
//! arrives. The caller is worker 0 and never waits for a worker that has not woken up yet: workers *join* an open
//! job, and the caller closes it when the tasks have run out.
//!
//! The whole state is one atomic word, the gate:
//!
//! ```text
//!   63                      19   18       17      16    15 .. 0
//!  [ round ................. ][ WAITING | ASLEEP | OPEN | joined ]
//! ```
//!
//! Because every transition is a read-modify-write of the same word, all threads agree on their order:
//! no worker can join a job that its caller has left, and no wake-up can be lost.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use sync::{Arc, AtomicU64, AtomicUsize, Condvar, JoinHandle, Mutex, Ordering, UnsafeCell};

mod apart;
mod disjoint;
mod spin;
mod sync;
mod topology;

use apart::Apart;
pub(crate) use disjoint::Disjoint;
use spin::spin;
pub use topology::performance_cores;
pub(crate) use topology::{allowed_cpus, stay_on};

/// Workers that have joined the open job and not left it yet.
const JOINED: u64 = (1 << 16) - 1;
/// Workers may join the job.
const OPEN: u64 = 1 << 16;
/// At least one worker sleeps on `job_posted` since the last job.
const ASLEEP: u64 = 1 << 17;
/// The caller sleeps on `job_left`.
const WAITING: u64 = 1 << 18;
/// The increment of a round: a job was posted, or the pool stopped.
const ROUND: u64 = 1 << 19;

/// Maximum threads of a pool: more than machines have processors, and few enough that the gate can count them.
const THREADS_MAX: usize = 4096;
const _: () = assert!(THREADS_MAX as u64 <= JOINED);

/// Persistent threads that execute the tasks of one job at a time.
///
/// ```
/// let pool = kvik_kernels::Pool::new(2);
/// let mut squares = vec![0; 100];
/// pool.run_chunks(&mut squares, 10, |chunk, values| {
///     for (i, value) in values.iter_mut().enumerate() {
///         *value = (chunk * 10 + i).pow(2);
///     }
/// });
/// assert_eq!(squares[99], 99 * 99);
/// ```
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the thread that posts jobs.
    caller: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    /// Processors that the threads are bound to, if some processors are slow.
    fast: Option<Vec<usize>>,
}

/// Why a pool does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No machine has so many processors.
    #[error("a model is computed by at most {THREADS_MAX} threads, and `threads` is {threads}; lower it")]
    TooMany {
        /// Threads asked for.
        threads: usize,
    },
    /// The operating system refused a thread.
    #[error("the system starts {started} of {threads} threads: {source}; lower `threads`")]
    Refused {
        /// Threads that had started.
        started: usize,
        /// Threads asked for.
        threads: usize,
        /// Error of the system.
        source: io::Error,
    },
}

/// What a worker does from its start to its end.
type WorkerBody = Box<dyn FnOnce() + Send>;

impl Pool {
    /// [`Pool::start`] for a number of threads that the machine has.
    ///
    /// # Panics
    /// If the pool does not start.
    pub fn new(threads: usize) -> Pool {
        Pool::start(threads).expect("the system starts the threads it offers")
    }

    /// Starts `threads - 1` workers; the caller of [`Pool::run`] is the remaining one.
    ///
    /// # Errors
    /// If these are too many threads, or the operating system refuses one; the others have ended then.
    pub fn start(threads: usize) -> Result<Pool, PoolError> {
        Pool::start_by(threads, |body| sync::spawn("kvik-worker", body))
    }

    /// [`Pool::start`] with workers that `spawn` starts.
    fn start_by(
        threads: usize,
        spawn: impl Fn(WorkerBody) -> io::Result<JoinHandle<()>>,
    ) -> Result<Pool, PoolError> {
        let threads = threads.max(1);
        if threads > THREADS_MAX {
            return Err(PoolError::TooMany { threads });
        }
        let (shared, fast) = (Arc::new(Shared::new(threads)), topology::fast_cpus(threads));
        // On an error it is dropped, which ends the workers that it has.
        let mut pool = Pool { shared, caller: Mutex::new(()), workers: Vec::new(), fast };
        for worker in 1..threads {
            let started = spawn(pool.body_of(worker));
            let refused = |source| PoolError::Refused { started: worker, threads, source };
            pool.workers.push(started.map_err(refused)?);
        }
        Ok(pool)
    }

    fn body_of(&self, worker: usize) -> WorkerBody {
        let (shared, fast) = (Arc::clone(&self.shared), self.fast.clone());
        Box::new(move || {
            stay(fast.as_deref());
            shared.serve(worker);
        })
    }

    /// The number of threads that share a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Binds the calling thread to the workers' processors, off the slow cores of a hybrid processor: this thread
    /// runs the jobs from now on.
    pub fn keep_caller(&self) {
        stay(self.fast.as_deref());
    }

    /// Calls `work(i)` once for every `i` in `0..tasks`, in any order, and returns when all calls have returned.
    ///
    /// A call from inside a task, or while another thread runs a job, executes its tasks on its own thread.
    ///
    /// # Panics
    /// With the payload of the first task that panicked, after every thread has left the job.
    /// Tasks not started by then are skipped.
    pub fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        self.run_by_worker(tasks, &|_, task| work(task));
    }

    /// [`Pool::run`], where `work(worker, i)` also receives its worker, from `0..threads`: within one call, no
    /// two tasks run on the same worker concurrently, so each worker may have its own buffers.
    pub(crate) fn run_by_worker(&self, tasks: usize, work: &Work<'_>) {
        let alone = self.workers.is_empty() || tasks <= 1;
        let caller = if alone { None } else { self.caller.try_lock().ok() };
        let Some(caller) = caller else {
            return (0..tasks).for_each(|task| work(0, task));
        };
        let outcome = self.shared.run(tasks, work);
        drop(caller);
        if let Err(payload) = outcome {
            resume_unwind(payload);
        }
    }

    /// Splits `data` into pieces of `chunk` elements (the last may be shorter) and calls `work(index, piece)`
    /// for each.
    pub fn run_chunks<T: Send>(&self, data: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let len = data.len();
        let pieces = Disjoint::new(data);
        self.run(len.div_ceil(chunk), &|index| {
            let start = index * chunk;
            // SAFETY: the pool hands out each index once, and pieces of different indices do not overlap.
            let piece = unsafe { pieces.range(start, chunk.min(len - start)) };
            work(index, piece);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it has nothing to report.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// Binds the calling thread to these processors, if any are given. Best effort: a refusal only costs speed.
fn stay(cpus: Option<&[usize]>) {
    if let Some(cpus) = cpus {
        let _ = stay_on(cpus);
    }
}

/// State shared by the threads of a pool.
struct Shared {
    /// Polled by waiting threads while others take tasks: a shared cache line would bounce between them.
    gate: Apart<AtomicU64>,
    /// The next task to hand out. Relaxed: it only has to be unique, the gate orders everything else.
    next_task: Apart<AtomicUsize>,
    /// Written by the caller while the gate is shut and no worker is inside, read by threads that joined.
    job: UnsafeCell<Option<Job>>,
    /// The first panic of the job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    job_posted: Condvar,
    job_left: Condvar,
    /// Whether there are more threads than cores.
    crowded: bool,
}

/// The function of a job, of worker and task.
type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A job with its lifetime erased; `None` in [`Shared::job`] makes the workers exit.
#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    tasks: usize,
}

// SAFETY: `job` is the only field that is not Sync by itself. The gate orders all access to it (see there),
// and the closure it points to is Sync and outlives the job: `Shared::run` returns after the last thread left.
unsafe impl Sync for Shared {}
// SAFETY: as above; a `Job` is only a borrowed closure that is Sync.
unsafe impl Send for Shared {}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            gate: Apart(AtomicU64::new(0)),
            next_task: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            sleep: Mutex::new(()),
            job_posted: Condvar::new(),
            job_left: Condvar::new(),
            crowded: std::thread::available_parallelism().is_ok_and(|cores| threads > cores.get()),
        }
    }

    /// Runs a job as the caller: posts it, takes tasks, shuts the gate, waits for the workers inside.
    fn run(&self, tasks: usize, work: &Work<'_>) -> std::thread::Result<()> {
        // SAFETY: only the lifetime changes; the job is over, for every thread, before this call returns.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        self.post(Some(Job { work, tasks }));
        self.take_tasks(0);
        self.gate.fetch_and(!OPEN, Ordering::Relaxed);
        self.wait_until_left();
        sync::lock(&self.panic).take().map_or(Ok(()), Err)
    }

    fn stop(&self) {
        self.post(None);
    }

    /// Opens the gate for a new round and wakes the workers that sleep.
    fn post(&self, job: Option<Job>) {
        self.next_task.store(0, Ordering::Relaxed);
        // SAFETY: the gate is shut and no worker is inside: the last round ended that way.
        self.job.with_mut(|slot| unsafe { *slot = job });
        let round = self.gate.load(Ordering::Relaxed) & !(ROUND - 1);
        let before = self.gate.swap(round.wrapping_add(ROUND) | OPEN, Ordering::Release);
        if before & ASLEEP != 0 {
            // The worker that set ASLEEP holds the lock until it really sleeps.
            drop(sync::lock(&self.sleep));
            self.job_posted.notify_all();
        }
    }

    /// Waits until no worker is inside, so that the job may be dropped.
    fn wait_until_left(&self) {
        let nobody_inside = || (self.gate.load(Ordering::Acquire) & JOINED == 0).then_some(());
        if spin(self.crowded, nobody_inside).is_some() {
            return;
        }
        let mut sleep = sync::lock(&self.sleep);
        while self.gate.fetch_or(WAITING, Ordering::Acquire) & JOINED != 0 {
            sleep = sync::wait(&self.job_left, sleep);
        }
    }

    /// The main loop of a worker.
    fn serve(&self, worker: usize) {
        let mut round = 0;
        loop {
            round = self.next_round(round);
            if !self.join(round) {
                continue;
            }
            // SAFETY: this thread has joined: the job stays unchanged until it leaves.
            let ended = self.job.with(|job| unsafe { (*job).is_none() });
            if !ended {
                self.take_tasks(worker);
            }
            self.leave();
            if ended {
                return;
            }
        }
    }

    /// Waits for a round that is open and is not `last`.
    fn next_round(&self, last: u64) -> u64 {
        let open_round = |gate: u64| {
            let round = gate & !(ROUND - 1);
            (gate & OPEN != 0 && round != last).then_some(round)
        };
        if let Some(round) = spin(self.crowded, || open_round(self.gate.load(Ordering::Relaxed))) {
            return round;
        }
        let mut sleep = sync::lock(&self.sleep);
        loop {
            if let Some(round) = open_round(self.gate.fetch_or(ASLEEP, Ordering::Relaxed)) {
                return round;
            }
            sleep = sync::wait(&self.job_posted, sleep);
        }
    }

    /// Enters the job of `round`, unless it has been closed.
    fn join(&self, round: u64) -> bool {
        let enter = |gate: u64| (gate & OPEN != 0 && gate & !(ROUND - 1) == round).then_some(gate + 1);
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    fn leave(&self) {
        let before = self.gate.fetch_sub(1, Ordering::Release);
        if before & WAITING != 0 && before & JOINED == 1 {
            drop(sync::lock(&self.sleep));
            self.job_left.notify_one();
        }
    }

    /// Executes tasks until none is left; a panic ends the job for all threads.
    fn take_tasks(&self, worker: usize) {
        // SAFETY: the caller of this function is inside the job or has posted it.
        let job = self.job.with(|job| unsafe { *job }).expect("the pool posts tasks only with a job");
        // SAFETY: the closure outlives the job, see `run`.
        let work = unsafe { &*job.work };
        let tasks = || {
            loop {
                let task = self.next_task.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    return;
                }
                work(worker, task);
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(tasks)) {
            self.next_task.store(job.tasks, Ordering::Relaxed);
            sync::lock(&self.panic).get_or_insert(payload);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_polled_and_what_is_taken_share_no_line() {
        let shared = Shared::new(1);
        let address = |at: *const u8| at.addr();
        let gate = address((&raw const *shared.gate).cast());
        let task = address((&raw const *shared.next_task).cast());
        let job = address((&raw const shared.job).cast());
        for (one, other) in [(gate, task), (gate, job), (task, job)] {
            assert!(one / 128 != other / 128, "{one:x} and {other:x}");
        }
    }

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let calls: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task| {
                    calls[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1), "{threads} {tasks}");
            }
        }
    }

    #[test]
    fn a_pool_that_does_not_start_leaves_no_thread() {
        let too_many = [THREADS_MAX + 1, usize::MAX].map(|threads| Pool::start(threads).unwrap_err());
        assert!(too_many.iter().all(|error| matches!(error, PoolError::TooMany { .. })), "{too_many:?}");
        for starts in 0..5 {
            let (begun, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
            let refused = Pool::start_by(6, |body| {
                if begun.fetch_add(1, Ordering::Relaxed) == starts {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let ended = Arc::clone(&ended);
                sync::spawn("kvik-worker", move || {
                    body();
                    ended.fetch_add(1, Ordering::Relaxed);
                })
            });
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(&format!("starts {} of 6 threads", starts + 1)), "{error}");
            assert_eq!(ended.load(Ordering::Relaxed), starts, "workers that have ended");
        }
    }

    #[test]
    fn many_short_jobs_see_the_writes_of_the_one_before() {
        let pool = Pool::new(4);
        let mut values = vec![0_u32; 64];
        for round in 0..20_000 {
            pool.run_chunks(&mut values, 16, |_, values| {
                for value in values {
                    assert_eq!(*value, round);
                    *value += 1;
                }
            });
        }
    }

    #[test]
    fn jobs_after_a_pause_wake_the_workers() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            let done = AtomicUsize::new(0);
            pool.run(50, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for panicking in [0, 3, 49] {
                let job = || pool.run(50, &|task| assert_ne!(task, panicking, "task {task} fails"));
                let payload = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
                let message = payload.downcast_ref::<String>().unwrap();
                assert!(message.contains(&format!("task {panicking} fails")), "{message}");
                let mut after = vec![0; 10];
                pool.run_chunks(&mut after, 3, |chunk, values| values.fill(chunk));
                assert_eq!(after, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
                assert!(pool.caller.try_lock().is_ok(), "the pool still accepts jobs");
            }
        }
    }

    #[test]
    fn nested_and_concurrent_jobs_complete() {
        let pool = Pool::new(3);
        let done = AtomicUsize::new(0);
        let job = || {
            pool.run(10, &|_| {
                pool.run(10, &|_| {
                    done.fetch_add(1, Ordering::Relaxed);
                });
            });
        };
        std::thread::scope(|scope| {
            scope.spawn(job);
            scope.spawn(job);
        });
        assert_eq!(done.into_inner(), 200);
    }
}
