//! A queue of lines for a writer that may block.

use std::{
    cell::Cell,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Maximum lines in the queue.
const LINES_MAX: usize = 8192;
/// Maximum bytes of these lines; a single line may be of any length.
const BYTES_MAX: usize = 4 << 20;
/// Minimum interval between notices about dropped lines.
const NOTICE_TIME: Duration = Duration::from_secs(1);

thread_local! {
    /// Set on the writing thread while it logs its own notice, whose line goes directly to standard error.
    static WRITES: Cell<Option<Notice>> = const { Cell::new(None) };
}

/// The outcome of writing that notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    Awaited,
    Failed,
}

/// The queue of lines. Adding one never blocks.
#[derive(Default)]
pub(super) struct Queue {
    sender: Option<SyncSender<Vec<u8>>>,
    lines: AtomicUsize,
    bytes: AtomicUsize,
    /// Lines dropped since the start.
    dropped: AtomicU64,
    /// Dropped lines not yet reported in the log.
    unreported: AtomicU64,
}

impl Queue {
    /// Starts the thread that writes to `out`.
    pub(super) fn start(out: Box<dyn Write + Send>) -> io::Result<Arc<Queue>> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let queue = Arc::new(Queue { sender: Some(sender), ..Queue::default() });
        let writer = Writer { queue: queue.clone(), lines: receiver, out, told: None };
        thread::Builder::new().name("kvik-log".to_owned()).spawn(move || writer.run())?;
        Ok(queue)
    }

    /// Adds a line, or drops it if the queue is full.
    pub(super) fn push(&self, line: &[u8]) {
        let waiting = self.bytes.fetch_add(line.len(), Ordering::AcqRel);
        self.lines.fetch_add(1, Ordering::AcqRel);
        let has_room = waiting == 0 || waiting + line.len() <= BYTES_MAX;
        let sender = self.sender.as_ref().filter(|_| has_room);
        if sender.is_none_or(|sender| sender.try_send(line.to_vec()).is_err()) {
            self.leave(line.len());
            self.drop_lines(1);
        }
    }

    /// Lines dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, at most for `most`.
    pub(super) fn flush(&self, most: Duration) {
        let end = Instant::now() + most;
        while self.lines.load(Ordering::Acquire) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Accounts for a line that has left the queue.
    fn leave(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.lines.fetch_sub(1, Ordering::AcqRel);
    }

    fn drop_lines(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
        self.unreported.fetch_add(lines, Ordering::AcqRel);
    }
}

/// The writing thread.
struct Writer {
    queue: Arc<Queue>,
    lines: Receiver<Vec<u8>>,
    out: Box<dyn Write + Send>,
    /// Time of the last notice about dropped lines.
    told: Option<Instant>,
}

impl Writer {
    fn run(mut self) {
        loop {
            match self.lines.recv_timeout(NOTICE_TIME) {
                Ok(line) => {
                    let written = self.write(&line);
                    self.queue.leave(line.len());
                    match written {
                        true => self.tell(),
                        false => self.queue.drop_lines(1),
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.tell(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> bool {
        self.out.write_all(line).and_then(|()| self.out.flush()).is_ok()
    }

    /// Logs the number of dropped lines, in the format of all lines.
    fn tell(&mut self) {
        let is_early = self.told.is_some_and(|told| told.elapsed() < NOTICE_TIME);
        let lines = if is_early { 0 } else { self.queue.unreported.swap(0, Ordering::AcqRel) };
        if lines == 0 {
            return;
        }
        self.told = Some(Instant::now());
        WRITES.set(Some(Notice::Awaited));
        tracing::warn!("{lines} lines of the log were dropped: nobody read it, or it could not be written");
        if WRITES.take() == Some(Notice::Failed) {
            self.queue.unreported.fetch_add(lines, Ordering::AcqRel);
        }
    }
}

/// A writer that puts an event into the queue as one line.
pub(super) struct Lines(Arc<Queue>);

impl Lines {
    pub(super) fn new(queue: Arc<Queue>) -> Lines {
        Lines(queue)
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if WRITES.get().is_none() {
            self.0.push(line);
        } else if io::stderr().write_all(line).is_err() {
            WRITES.set(Some(Notice::Failed));
        }
        // Errors are ignored: the subscriber would report them on standard error, from a thread that must not block on
        // it.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A reader that blocks while the test holds the lock, and fails as often as it is told to.
    #[derive(Clone, Default)]
    struct Reader {
        read: Arc<Mutex<Vec<u8>>>,
        fails: Arc<AtomicUsize>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut read = self.read.lock().unwrap();
            if self.fails.load(Ordering::Acquire) > 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            read.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stands_still_stops_nobody_and_what_finds_no_room_is_counted() {
        let reader = Reader::default();
        let queue = Queue::start(Box::new(reader.clone())).unwrap();
        let held = reader.read.lock().unwrap();
        let started = Instant::now();
        let pushed = LINES_MAX + 1000;
        (0..pushed).for_each(|number| queue.push(format!("line {number}\n").as_bytes()));
        queue.flush(Duration::from_millis(20));
        assert!(started.elapsed() < Duration::from_secs(5), "nobody waits, not even the end");
        // One line may be with the writer.
        assert!((999..=1000).contains(&queue.dropped()), "{}", queue.dropped());
        drop(held);
        queue.flush(Duration::from_secs(20));
        let read = String::from_utf8(reader.read.lock().unwrap().clone()).unwrap();
        let lines: Vec<usize> = read.lines().map(|line| line["line ".len()..].parse().unwrap()).collect();
        assert_eq!(lines.len() as u64 + queue.dropped(), pushed as u64);
        assert!(lines[..LINES_MAX].iter().copied().eq(0..LINES_MAX), "those that found room come first");
        // A writer that starts late removes its first line when the queue is full, so that one more line fits.
        assert!(lines.is_sorted_by(|one, next| one < next), "{:?}", &lines[LINES_MAX..]);
    }

    #[test]
    fn lines_take_a_bounded_number_of_bytes_and_one_may_be_longer() {
        let reader = Reader::default();
        let queue = Queue::start(Box::new(reader.clone())).unwrap();
        let held = reader.read.lock().unwrap();
        queue.push(&vec![b'a'; BYTES_MAX + 5]);
        assert_eq!(queue.dropped(), 0);
        queue.push(b"b");
        assert_eq!(queue.dropped(), 1);
        drop(held);
        queue.flush(Duration::from_secs(20));
        assert_eq!(reader.read.lock().unwrap().len(), BYTES_MAX + 5);
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_the_next_is_tried() {
        let reader = Reader::default();
        let queue = Queue::start(Box::new(reader.clone())).unwrap();
        reader.fails.store(1, Ordering::Release);
        (0..3).for_each(|_| queue.push(b"lost\n"));
        queue.flush(Duration::from_secs(20));
        let started = Instant::now();
        while queue.dropped() < 3 && started.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
        assert_eq!(queue.dropped(), 3);
        reader.fails.store(0, Ordering::Release);
        queue.push(b"kept\n");
        queue.flush(Duration::from_secs(20));
        assert_eq!(*reader.read.lock().unwrap(), b"kept\n");
    }
}
