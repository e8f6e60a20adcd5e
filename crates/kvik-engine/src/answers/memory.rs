//! What was generated, in memory and beside the blocks on disk.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvik_cache::Token;
use kvik_text::stream::{TokenKind, Vocabulary};

use super::book::{AnswerBook, AnswerLife, Moment};
use super::bytes::TokenBytes;
use super::splice::{Continuation, Spliced, spliced};
use crate::api::{AnswerKey, AnswerOwner, Request, Retokenised, UsedAnswer, Wants};
use crate::store::answer_log::{AnswerLog, LOOK_EVERY, LogNews, LoggedAnswer, TOKENS_MAX, owner_of};

/// Tokens behind the last control token of a prompt, at most, that are recorded with its answer: a tokenizer may join the end
/// of a template's text with it.
const LEAD_MAX: usize = 16;

/// The answers that were generated.
pub(crate) struct GeneratedAnswers {
    vocabulary: Arc<Vocabulary>,
    context_tokens: usize,
    known: Arc<SharedAnswers>,
    writer: Option<LogWriter>,
}

/// The answers, and the file that they are in. Where both are locked, the file is locked first.
struct SharedAnswers {
    book: Mutex<AnswerBook>,
    log: Option<Mutex<AnswerLog>>,
}

/// The thread that appends to the log and reads what others append, so that neither the engine's thread nor a request
/// waits for a disk.
struct LogWriter {
    commands: Option<Sender<LogCommand>>,
    thread: Option<JoinHandle<()>>,
}

enum LogCommand {
    Append(LoggedAnswer),
    Flush(Sender<()>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GeneratedAnswers {
    /// None yet, of a model with this vocabulary, besides those of the log at `path`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn open(
        vocabulary: Arc<Vocabulary>,
        context_tokens: usize,
        path: Option<PathBuf>,
    ) -> std::io::Result<GeneratedAnswers> {
        let log = path.map(|path| Mutex::new(AnswerLog::new(path, digest(&vocabulary))));
        let known = Arc::new(SharedAnswers { book: Mutex::default(), log });
        known.follow();
        let writer = known.log.is_some().then(|| LogWriter::start(known.clone())).transpose()?;
        Ok(GeneratedAnswers { vocabulary, context_tokens, known, writer })
    }

    /// Gives the answers in a prompt the tokens that were generated, and notes where its own answer will be recorded. A
    /// request whose tokens its client has chosen, that keeps nothing, or that was treated already stays as it is.
    pub(crate) fn as_generated(&self, request: &mut Request) {
        let is_asked =
            request.prompt_is_text && request.wants == Wants::Text && request.kept_prefix.is_none();
        let keeps = request.reuse && !request.lifetime.pin && request.lifetime.ttl != Some(Duration::ZERO);
        if !is_asked || !keeps || request.retokenised.is_some() {
            return;
        }
        let (owner, key) = keys(request.salt);
        let own = TokenBytes::of(&request.prompt, &self.vocabulary);
        let lengths = locked(&self.known.book).lengths(&owner);
        let places = places(&own.bytes, &lengths, &key);
        let continuations = locked(&self.known.book).at(&owner, &places, Moment::now());
        let Spliced { tokens, changed, used } =
            spliced(&request.prompt, &own, &continuations, &self.vocabulary);
        let fits = tokens.len() <= self.context_tokens.max(request.prompt.len());
        let (tokens, changed) = if fits { (tokens, changed) } else { (request.prompt.clone(), 0) };
        let lead = self.lead(&tokens);
        let recorded = TokenBytes::of(&tokens[tokens.len() - lead..], &self.vocabulary).bytes;
        let bytes = u32::try_from(own.bytes.len() - recorded.len()).unwrap_or(u32::MAX);
        let Some(&place) = self::places(&own.bytes, &[bytes], &key).first() else { return };
        request.prompt = tokens;
        let used = used.into_iter().filter_map(|index| {
            let Continuation { at, tokens } = &continuations[index];
            let index = places.binary_search_by_key(at, |place| place.bytes as usize).ok()?;
            Some(UsedAnswer { place: places[index], tokens: tokens.clone() })
        });
        let used = used.collect();
        request.retokenised = Some(Retokenised { tokens: changed, owner, place, lead, used });
    }

    /// Number of tokens behind the last control token of a prompt, with which the record of its answer begins. A prompt that
    /// ends in plain text is followed by the answer alone: where a tokenizer joins the two, the text is its own.
    fn lead(&self, tokens: &[Token]) -> usize {
        let is_control = |token: &Token| self.vocabulary.kind(*token) != TokenKind::Text;
        tokens.iter().rev().take(LEAD_MAX).position(is_control).unwrap_or(0)
    }

    /// Counts a use of the answers in a prompt by a request with this time to live, which begins.
    pub(crate) fn use_in(&self, prompt: &Retokenised, ttl: Option<Duration>) {
        locked(&self.known.book).use_at(&prompt.owner, &prompt.used, AnswerLife::used_now(ttl));
    }

    /// Remembers an answer: the lead of its prompt and what was generated behind it, for as long as the blocks are kept.
    pub(crate) fn remember(&self, prompt: &Retokenised, mut tokens: Vec<Token>, ttl: Option<Duration>) {
        tokens.truncate(TOKENS_MAX);
        let answer = LoggedAnswer { owner: prompt.owner, place: prompt.place, tokens: tokens.into() };
        let life = AnswerLife::used_now(ttl);
        let is_durable = {
            let mut book = locked(&self.known.book);
            book.use_at(&prompt.owner, &prompt.used, life);
            book.add(&answer, life)
        };
        if let Some(writer) = self.writer.as_ref().filter(|_| is_durable) {
            writer.send(LogCommand::Append(answer));
        }
    }

    /// Forgets the answers in and behind these prompts of a tenant. Returns how many of them are in a file that another
    /// process writes.
    pub(crate) fn forget(&self, salt: [u8; 16], prompts: &[Vec<Token>]) -> usize {
        let (owner, key) = keys(salt);
        let texts: Vec<Vec<u8>> =
            prompts.iter().map(|prompt| TokenBytes::of(prompt, &self.vocabulary).bytes).collect();
        let of = |lengths: &[u32]| -> HashSet<AnswerKey> {
            texts.iter().flat_map(|text| places(text, lengths, &key)).collect()
        };
        let mut log = self.known.log.as_ref().map(locked);
        let lengths = self.known.informed(|| log.as_mut()?.look_now()).lengths(&owner);
        // The prompts are hashed between two locks: the engine's thread waits for none of it.
        let places = of(&lengths);
        locked(&self.known.book).drop_at(&owner, places);
        let Some(log) = &mut log else { return 0 };
        // The file may have answers that are no longer in memory.
        let mut answers = log.all();
        let own = answers.iter().filter(|answer| answer.owner == owner);
        let mut lengths: Vec<u32> = own.map(|answer| answer.place.bytes).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let places = of(&lengths);
        let before = answers.len();
        answers.retain(|answer| answer.owner != owner || !places.contains(&answer.place));
        match before - answers.len() {
            0 => 0,
            left if !log.writes() => left,
            _ => {
                rewrite(log, &answers);
                0
            }
        }
    }

    /// Forgets the answers of a tenant, or all.
    pub(crate) fn clear(&self, salt: Option<[u8; 16]>) {
        let owner = salt.map(owner_of);
        let mut log = self.known.log.as_ref().map(locked);
        self.known.informed(|| log.as_mut()?.look_now()).clear(owner.as_ref());
        if let Some(log) = &mut log {
            let mut answers = log.all();
            answers.retain(|answer| owner.is_some_and(|owner| owner != answer.owner));
            rewrite(log, &answers);
        }
    }

    /// Sets the tenants whose answers are not written to disk.
    pub(crate) fn keep_in_memory(&self, salts: impl Iterator<Item = [u8; 16]>) {
        let owners: Vec<AnswerOwner> = salts.map(owner_of).collect();
        let mut log = self.known.log.as_ref().map(locked);
        let may_be_written = locked(&self.known.book).keep_in_memory(owners.iter().copied().collect());
        if let Some(log) = log.as_mut().filter(|_| may_be_written) {
            let mut answers = log.all();
            answers.retain(|answer| !owners.contains(&answer.owner));
            rewrite(log, &answers);
        }
    }

    /// When to call [`drop_ended`](GeneratedAnswers::drop_ended); `None` while nothing is to expire.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        locked(&self.known.book).next_look()
    }

    /// Drops the answers that have expired, if it is time to look for them.
    pub(crate) fn drop_ended(&self) {
        locked(&self.known.book).drop_ended(Moment::now());
    }

    /// Waits for at most `within` until what was remembered is in the log.
    pub(crate) fn flush(&self, within: Duration) {
        if let Some(writer) = &self.writer {
            let (sender, receiver) = channel();
            writer.send(LogCommand::Flush(sender));
            let _ = receiver.recv_timeout(within);
        }
    }
}

impl SharedAnswers {
    /// Reads what other processes have written.
    fn follow(&self) {
        let Some(log) = &self.log else { return };
        // Whoever has the lock looks, or writes.
        let Ok(mut log) = log.try_lock() else { return };
        drop(self.informed(|| log.look()));
    }

    /// The book, with the news that `read` finds in the file. The book is locked behind the reading, because the engine's
    /// thread takes it whenever an answer ends, and a disk may hang.
    fn informed(&self, read: impl FnOnce() -> Option<LogNews>) -> MutexGuard<'_, AnswerBook> {
        let news = read();
        let mut book = locked(&self.book);
        book.take_news(news);
        book
    }

    /// Whether this process writes the log.
    fn writes(&self) -> bool {
        self.log.as_ref().is_some_and(|log| locked(log).writes())
    }

    /// Appends an answer to the log, unless it was forgotten meanwhile.
    fn append(&self, answer: &LoggedAnswer) {
        self.follow();
        let Some(mut log) = self.log.as_ref().map(locked) else { return };
        let (is_durable, bytes) = {
            let book = locked(&self.book);
            (book.is_durable(answer), book.bytes())
        };
        match if is_durable { log.append(answer, bytes) } else { Ok(false) } {
            Ok(false) => {}
            Ok(true) => {
                let answers = locked(&self.book).durable();
                rewrite(&mut log, &answers);
            }
            Err(error) => tracing::debug!("an answer is not in the log beside the disk cache: {error}"),
        }
    }
}

impl LogWriter {
    fn start(known: Arc<SharedAnswers>) -> std::io::Result<LogWriter> {
        let (commands, receiver) = channel();
        let thread = std::thread::Builder::new().name("kvik-answers".to_owned());
        let thread = thread.spawn(move || write(&known, &receiver))?;
        Ok(LogWriter { commands: Some(commands), thread: Some(thread) })
    }

    fn send(&self, command: LogCommand) {
        // The thread ends only with this handle.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn write(known: &SharedAnswers, commands: &Receiver<LogCommand>) {
    loop {
        // What nobody else writes brings no news.
        let command = match known.writes() {
            true => commands.recv().map_err(RecvTimeoutError::from),
            false => commands.recv_timeout(LOOK_EVERY),
        };
        match command {
            Ok(LogCommand::Append(answer)) => known.append(&answer),
            Ok(LogCommand::Flush(sender)) => drop(sender.send(())),
            Err(RecvTimeoutError::Timeout) => known.follow(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn rewrite(log: &mut AnswerLog, answers: &[LoggedAnswer]) {
    if let Err(error) = log.rewrite(answers) {
        tracing::warn!("the answers beside the disk cache cannot be written anew: {error}");
    }
}

/// The owner of the answers of a tenant, and the key of their places.
fn keys(salt: [u8; 16]) -> (AnswerOwner, [u8; 32]) {
    (owner_of(salt), blake3::derive_key("kvik 2026-11-29 places of generated answers", &salt))
}

/// The places of these lengths, ascending, in a text.
fn places(text: &[u8], lengths: &[u32], key: &[u8; 32]) -> Vec<AnswerKey> {
    let within = lengths.partition_point(|&length| length as usize <= text.len());
    let mut hasher = blake3::Hasher::new_keyed(key);
    let mut at = 0;
    let mut place = |&bytes: &u32| {
        hasher.update(&text[at..bytes as usize]);
        at = bytes as usize;
        let mut hash = [0; 16];
        hasher.finalize_xof().fill(&mut hash);
        AnswerKey { bytes, hash }
    };
    lengths[..within].iter().map(&mut place).collect()
}

/// Tells vocabularies apart, since the tokens of a log are those of one.
fn digest(vocabulary: &Vocabulary) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("kvik 2026-11-29 vocabulary of generated answers");
    for token in 0..vocabulary.len() as Token {
        let bytes = vocabulary.bytes(token);
        hasher.update(&[vocabulary.kind(token) as u8]);
        hasher.update(&(bytes.len() as u32).to_le_bytes());
        hasher.update(bytes);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvik_cache::Lifetime;
    use proptest::prelude::*;

    use super::*;
    use crate::answers::AnswerListener;
    use crate::api::{Event, FinishReason, GeneratedToken, Nobody, Report};

    const A: Token = 0;
    const B: Token = 1;
    const AB: Token = 2;
    const TURN: Token = 3;
    const END: Token = 4;
    /// A question, and the same with an answer behind it, as a tokenizer divides it.
    const ASKED: [Token; 3] = [TURN, AB, TURN];
    const ANSWERED: [Token; 6] = [TURN, AB, TURN, AB, AB, END];

    fn vocabulary() -> Arc<Vocabulary> {
        use TokenKind::{Control, EndOfGeneration, Text};
        let tokens =
            [("a", Text), ("b", Text), ("ab", Text), ("<turn>", Control), ("<end>", EndOfGeneration)];
        Arc::new(Vocabulary::new(tokens))
    }

    fn opened(dir: Option<&Path>) -> Arc<GeneratedAnswers> {
        let log = dir.map(|dir| dir.join("0a.answers"));
        Arc::new(GeneratedAnswers::open(vocabulary(), 4096, log).unwrap())
    }

    fn request(salt: u8, prompt: &[Token]) -> Request {
        Request { salt: [salt; 16], prompt_is_text: true, ..Request::new(prompt.to_vec(), 8) }
    }

    /// Answers a request with these tokens, up to its end or until its client goes.
    fn answer(answers: &Arc<GeneratedAnswers>, mut request: Request, tokens: &[Token], ends: bool) {
        answers.as_generated(&mut request);
        let mut sink = AnswerListener::before(Box::new(Nobody), &request, answers);
        for &token in tokens {
            let tokens = vec![GeneratedToken { token, logprob: None }];
            sink.send(Event::Text { choice: 0, text: String::new(), tokens });
        }
        if ends {
            sink.send(Event::Finished { choice: 0, reason: FinishReason::Eos });
        } else {
            sink.given_up(&Report::default());
        }
    }

    /// The tokens of a prompt, and how many are not the tokenizer's.
    fn prompt(answers: &GeneratedAnswers, mut request: Request) -> (Vec<Token>, Option<usize>) {
        answers.as_generated(&mut request);
        (request.prompt, request.retokenised.map(|found| found.tokens))
    }

    fn known(answers: &GeneratedAnswers) -> bool {
        prompt(answers, request(1, &ANSWERED)) == (vec![TURN, AB, TURN, A, B, AB, END], Some(2))
    }

    #[test]
    fn an_answer_is_known_to_its_owner_alone() {
        for ends in [true, false] {
            let answers = opened(None);
            answer(&answers, request(1, &ASKED), &[A, B, AB], ends);
            assert!(known(&answers));
            assert_eq!(prompt(&answers, request(2, &ANSWERED)), (ANSWERED.to_vec(), Some(0)));
            answers.clear(Some([2; 16]));
            assert!(known(&answers));
            answers.clear(Some([1; 16]));
            assert!(!known(&answers));
        }
    }

    /// The tokens that a tokenizer chooses for the text of these.
    fn tokenized(tokens: &[Token]) -> Vec<Token> {
        let text = tokens.iter().flat_map(|&token| if token == AB { vec![A, B] } else { vec![token] });
        let mut out: Vec<Token> = Vec::new();
        for token in text {
            match out.last_mut() {
                Some(last) if *last == A && token == B => *last = AB,
                _ => out.push(token),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn conversations_have_the_tokens_of_their_own_answers(
            turns in prop::collection::vec(
                (1u8..3, prop::collection::vec(A..=AB, 1..4), prop::collection::vec(A..=AB, 1..8), any::<bool>()),
                1..12,
            ),
        ) {
            let answers = opened(None);
            let mut said = [Vec::new(), Vec::new()];
            for (owner, question, generated, ends) in turns {
                let said = &mut said[usize::from(owner) - 1];
                said.push(TURN);
                said.extend(tokenized(&question));
                said.push(TURN);
                let sent = request(owner, &tokenized(said));
                let (tokens, changed) = prompt(&answers, sent.clone());
                prop_assert_eq!(&tokens, &*said);
                prop_assert_eq!(changed == Some(0), sent.prompt == *said);
                prop_assert_eq!(prompt(&answers, Request { salt: [9; 16], ..sent.clone() }), (sent.prompt.clone(), Some(0)));
                answer(&answers, sent, &generated, ends);
                said.extend(generated);
                said.push(END);
            }
        }
    }

    #[test]
    fn a_request_may_keep_its_tokens() {
        let answers = opened(None);
        answer(&answers, request(1, &ASKED), &[A, B, AB], true);
        let given = Request { prompt_is_text: false, ..request(1, &ANSWERED) };
        let private = Request { reuse: false, ..request(1, &ANSWERED) };
        let pinned =
            Request { lifetime: Lifetime { pin: true, ..Lifetime::default() }, ..request(1, &ANSWERED) };
        for request in [given, private, pinned] {
            assert_eq!(prompt(&answers, request), (ANSWERED.to_vec(), None));
        }
        let short = GeneratedAnswers {
            context_tokens: 6,
            known: answers.known.clone(),
            writer: None,
            vocabulary: vocabulary(),
        };
        assert_eq!(prompt(&short, request(1, &ANSWERED)), (ANSWERED.to_vec(), Some(0)), "it would not fit");
    }

    #[test]
    fn an_answer_lasts_as_long_as_its_blocks() {
        let brief = |prompt: &[Token], ttl| {
            let lifetime = Lifetime { ttl: Some(ttl), ..Lifetime::default() };
            Request { lifetime, ..request(1, prompt) }
        };
        let (moment, long) = (Duration::from_nanos(1), Duration::from_secs(600));
        let answers = opened(None);
        answer(&answers, brief(&ASKED, moment), &[A, B, AB], true);
        assert!(!known(&answers));
        answer(&answers, brief(&ASKED, long), &[A, B, AB], true);
        let lasting = || locked(&answers.known.book).durable().len();
        assert!(known(&answers) && lasting() == 0);
        let mut next = brief(&ANSWERED, moment);
        answers.as_generated(&mut next);
        let used = next.retokenised.unwrap();
        assert_eq!((used.tokens, used.used.len()), (2, 1), "it is in use until the next answer ends");
        assert_eq!(lasting(), 0, "whoever asks what would be found uses nothing");
        answer(&answers, request(1, &ANSWERED), &[A], true);
        assert_eq!(lasting(), 2, "a request that keeps it for ever, and its own answer");
    }

    /// The engine's thread takes the book whenever an answer ends.
    #[test]
    fn a_file_that_hangs_holds_up_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        let answers = opened(Some(dir.path()));
        let mut is_free = false;
        let read = || {
            is_free = answers.known.book.try_lock().is_ok();
            None
        };
        drop(answers.known.informed(read));
        assert!(is_free, "while the file is read");
        let hangs = locked(answers.known.log.as_ref().unwrap());
        let deletes = [1, 2].map(|kind| {
            let answers = answers.clone();
            std::thread::spawn(move || match kind {
                1 => answers.clear(Some([2; 16])),
                _ => assert_eq!(answers.forget([2; 16], &[ANSWERED.to_vec()]), 0),
            })
        });
        answer(&answers, request(1, &ASKED), &[A, B, AB], true);
        assert!(known(&answers) && deletes.iter().all(|delete| !delete.is_finished()));
        drop(hangs);
        deletes.into_iter().for_each(|delete| delete.join().unwrap());
    }

    #[test]
    fn a_record_begins_behind_a_control_token_or_with_the_answer() {
        let answers = opened(None);
        // A tokenizer joins the end of the template's text with the answer.
        answer(&answers, request(1, &[TURN, A]), &[B, A, B], true);
        assert_eq!(
            prompt(&answers, request(1, &[TURN, AB, AB, END])),
            (vec![TURN, A, B, A, B, END], Some(4))
        );
        // It joins the end of a text with what goes on from it.
        answer(&answers, request(1, &[AB, A]), &[B, A, B], true);
        assert_eq!(prompt(&answers, request(1, &[AB, AB, AB])), (vec![AB, AB, AB], Some(0)));
        answer(&answers, request(1, &[AB]), &[A, B], true);
        assert_eq!(prompt(&answers, request(1, &[AB, AB, A])), (vec![AB, A, B, A], Some(2)));
    }

    #[test]
    fn answers_outlive_the_process_unless_they_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let answers = opened(Some(dir.path()));
        answer(&answers, request(1, &ASKED), &[A, B, AB], true);
        answer(&answers, request(2, &ASKED), &[A, B, AB], true);
        drop(answers);
        let answers = opened(Some(dir.path()));
        assert!(known(&answers));
        answers.keep_in_memory([[1; 16]].into_iter());
        assert!(known(&answers), "it is in memory");
        drop(answers);
        let answers = opened(Some(dir.path()));
        assert!(!known(&answers) && prompt(&answers, request(2, &ANSWERED)).1 == Some(2));
        answer(&answers, request(1, &ASKED), &[A, B, AB], true);
        answers.flush(Duration::from_secs(60));
        assert_eq!(answers.forget([1; 16], &[vec![TURN, A], ANSWERED.to_vec()]), 0);
        assert!(!known(&answers));
        drop(answers);
        let answers = opened(Some(dir.path()));
        assert!(!known(&answers) && prompt(&answers, request(2, &ANSWERED)).1 == Some(2));
        answers.clear(None);
        drop(answers);
        assert_eq!(prompt(&opened(Some(dir.path())), request(2, &ANSWERED)).1, Some(0));
    }

    #[test]
    fn what_another_process_writes_is_known_and_is_its_own_to_delete() {
        let dir = tempfile::tempdir().unwrap();
        let writer = opened(Some(dir.path()));
        answer(&writer, request(1, &ASKED), &[A, B, AB], true);
        writer.flush(Duration::from_secs(60));
        let reader = opened(Some(dir.path()));
        assert!(known(&reader));
        answer(&writer, request(2, &ASKED), &[A, B, AB], true);
        let learns = Instant::now();
        while prompt(&reader, request(2, &ANSWERED)).1 == Some(0) {
            assert!(learns.elapsed() < Duration::from_secs(60), "it looks each second");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(reader.forget([1; 16], &[ASKED.to_vec()]), 1, "it is in the file");
        assert_eq!(writer.forget([1; 16], &[ASKED.to_vec()]), 0);
        assert_eq!(reader.forget([1; 16], &[ASKED.to_vec()]), 0);
        assert!(!known(&reader));
    }
}
