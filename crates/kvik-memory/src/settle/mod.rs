//! Settled prompts: text that changes between the requests of one program is moved behind text that does not.
//!
//! A coding agent writes the directory and the date near the front of its system message, and with another directory all
//! behind them is computed anew. A [`Settler`] learns from a tenant's requests which sentences of such a text change. It
//! replaces them in their places by a short reference of constant text, and returns them as notes, to be read behind the
//! system message and the tools:
//!
//! ```text
//! You are an agent. Directory: /a        You are an agent. [see note 1]       notes: 1 "Directory: /a"
//! Be brief.                         ->   Be brief.
//! ```
//!
//! The prompt is another one than the request's, so that this is done only where it was asked for, and told.
//!
//! What was learned outlives the process where there are records: a restart then moves the prefix of no session.

mod form;
mod stored;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use form::TextForm;
pub use form::{Note, Settled};
use stored::StoredTexts;

use crate::records::{FileTurns, Records, RecordsError, Table};

/// Maximum bytes of a text that is settled; a longer one stays as it is.
const TEXT_BYTES_MAX: usize = 128 << 10;
/// Minimum bytes of a text that is settled: less is computed in no time.
const TEXT_BYTES_MIN: usize = 256;
/// Maximum sentences of a text that is settled, which bounds the work of comparing two.
const SENTENCES_MAX: usize = 2048;
/// Maximum forms of a tenant: an agent has one for its system message and one for each long description of a tool. The
/// form that was not used for the longest time goes first.
const FORMS_MAX: usize = 64;
/// Maximum bytes of a tenant's forms.
const FORMS_BYTES_MAX: usize = 8 * TEXT_BYTES_MAX;
/// Maximum texts of a tenant whose outcome is known.
const TEXTS_MAX: usize = 512;
/// Maximum bytes of the forms that these outcomes refer to.
const OUTCOMES_BYTES_MAX: usize = 2 << 20;
/// Maximum tenants; the one that was not seen for the longest time goes first.
const TENANTS_MAX: usize = 64;

/// Whether a text is learned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learning {
    /// It may teach a place.
    On,
    /// It is only settled by what is known.
    Off,
}

/// What changes in the texts of each tenant.
pub struct Settler {
    tenants: Mutex<KnownTenants>,
    /// Absent if nothing can be written: then it is known as long as the process runs.
    table: Option<Table<StoredTexts>>,
    /// Serialises writers, so that nothing is written after it was forgotten.
    writing: FileTurns,
    /// How often records were removed, and how many of these times are rewritten: the rest may be in the file's free space.
    removals: AtomicU64,
    erased: AtomicU64,
}

#[derive(Default)]
struct KnownTenants {
    /// Each with a lock of its own: comparing the texts of one keeps no other waiting.
    all: HashMap<String, Arc<Mutex<TenantTexts>>>,
    /// Names from the least recently seen on.
    order: VecDeque<String>,
    /// Tenants that were forgotten, or not seen for the longest time: their records are obsolete.
    dropped: HashSet<String>,
}

/// The texts of a tenant, under its name.
type NamedTexts = (String, Arc<Mutex<TenantTexts>>);

#[derive(Default)]
struct TenantTexts {
    /// From the most recently used on.
    forms: VecDeque<Arc<TextForm>>,
    /// The outcome of each text by its hash, from the most recently used on. It stays as it is when more is learned: the
    /// prompts of a running conversation keep their prefix.
    outcomes: VecDeque<(u64, Option<Arc<TextForm>>)>,
    places: u32,
    /// Number of changes, and of those that are in the record.
    changes: u64,
    written: u64,
}

impl Default for Settler {
    fn default() -> Settler {
        Settler::open(None)
    }
}

impl Settler {
    /// What was known when the records were closed; nothing without records, or where they cannot be read.
    pub fn open(records: Option<&Records>) -> Settler {
        let table: Option<Table<StoredTexts>> = records.map(|records| records.table("settled"));
        let mut tenants = KnownTenants::default();
        let stored = table.as_ref().map(|table| table.all_from("")).transpose();
        let stored = stored.unwrap_or_else(|error| {
            tracing::warn!("what changes in prompts is learned anew: {error}");
            None
        });
        for (name, record) in stored.into_iter().flat_map(|found| found.records) {
            *lock(&tenants.of(&name)) = record.texts().unwrap_or_default();
        }
        // An earlier process may have removed some, and ended before it rewrote them.
        let removals = AtomicU64::new(u64::from(table.is_some()));
        let (tenants, writing, erased) = (Mutex::new(tenants), FileTurns::new(1), AtomicU64::new(0));
        Settler { tenants, table, writing, removals, erased }
    }

    /// Writes what was learned and forgotten since it was last written. Blocking.
    ///
    /// # Errors
    /// If it cannot be written; the next call tries again.
    pub fn write(&self) -> Result<(), RecordsError> {
        let Some(table) = &self.table else { return Ok(()) };
        let _writing = self.writing.enter()?;
        let (dropped, known) = lock(&self.tenants).unwritten();
        if !dropped.is_empty() {
            let removed = table.change(dropped.iter().map(String::as_str), |_, _| None);
            // Also if it failed, which does not say that nothing was removed.
            self.removals.fetch_add(1, Ordering::AcqRel);
            removed.inspect_err(|_| lock(&self.tenants).drop_again(dropped))?;
        }
        known.iter().try_for_each(|(name, texts)| write_changed(table, name, texts))
    }

    /// The settled form of a text of this tenant, in which something is known to change; `None` leaves it as it is.
    /// `is_last` says that no constant text follows it in the prompt, so that moving its end gains nothing.
    pub fn settle(&self, tenant: &str, text: &str, is_last: bool, learning: Learning) -> Option<Settled> {
        if !(TEXT_BYTES_MIN..=TEXT_BYTES_MAX).contains(&text.len()) {
            return None;
        }
        let hash = hash(text);
        let texts = self.texts(tenant, learning)?;
        let mut texts = lock(&texts);
        let form = match learning {
            Learning::On => texts.learned(text, hash),
            Learning::Off => texts.known(text, hash),
        };
        drop(texts);
        form?.settled(text, is_last)
    }

    /// The texts of a tenant; those of a new one are made where it is learned from them.
    fn texts(&self, tenant: &str, learning: Learning) -> Option<Arc<Mutex<TenantTexts>>> {
        let mut tenants = lock(&self.tenants);
        match learning {
            Learning::On => Some(tenants.of(tenant)),
            Learning::Off => tenants.all.get(tenant).cloned(),
        }
    }

    /// Forgets what was learned from the texts of a tenant, or of all; returns whether anything was known. Its bytes stay in
    /// free space of the records until they are rewritten. Blocking.
    ///
    /// # Errors
    /// If it may be known again after a restart; the next write tries again.
    pub fn forget(&self, tenant: Option<&str>) -> Result<bool, RecordsError> {
        let was_known = lock(&self.tenants).forget(tenant);
        if was_known {
            self.write()?;
        }
        Ok(was_known)
    }

    /// Forgets likewise, and erases by `rewrite` all records that were removed, now or before. Blocking.
    ///
    /// # Errors
    /// If some of it may be left in the file; the next call tries again.
    pub fn erase(
        &self,
        tenant: Option<&str>,
        rewrite: impl FnOnce() -> Result<(), RecordsError>,
    ) -> Result<(), RecordsError> {
        let was_known = self.forget(tenant)?;
        let removals = self.removals.load(Ordering::Acquire);
        if was_known || self.erased.load(Ordering::Acquire) < removals {
            rewrite()?;
            self.erased.fetch_max(removals, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// Writes the record of a tenant, if it lacks something.
fn write_changed(
    table: &Table<StoredTexts>,
    name: &str,
    texts: &Mutex<TenantTexts>,
) -> Result<(), RecordsError> {
    let (changes, record) = {
        let texts = lock(texts);
        if texts.changes == texts.written {
            return Ok(());
        }
        (texts.changes, StoredTexts::of(&texts))
    };
    table.change([name], |_, _| Some(record.clone()))?;
    lock(texts).written = changes;
    Ok(())
}

impl KnownTenants {
    fn of(&mut self, name: &str) -> Arc<Mutex<TenantTexts>> {
        self.order.retain(|known| known != name);
        self.order.push_back(name.to_owned());
        if self.order.len() > TENANTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
            self.dropped.insert(oldest);
        }
        let texts = self.all.entry(name.to_owned()).or_default().clone();
        if self.dropped.remove(name) {
            // Its record is still there, and is replaced.
            lock(&texts).changes += 1;
        }
        texts
    }

    /// Returns whether any of it was known.
    fn forget(&mut self, tenant: Option<&str>) -> bool {
        let is_it = |name: &str| tenant.is_none_or(|tenant| tenant == name);
        let (forgotten, all): (HashMap<_, _>, _) =
            mem::take(&mut self.all).into_iter().partition(|(name, _)| is_it(name));
        self.all = all;
        self.order.retain(|name| !is_it(name));
        self.dropped.extend(forgotten.into_keys());
        self.dropped.iter().any(|name| is_it(name))
    }

    /// Takes the names of obsolete records, and returns all others that may lack something.
    fn unwritten(&mut self) -> (HashSet<String>, Vec<NamedTexts>) {
        let known = self.all.iter().map(|(name, texts)| (name.clone(), texts.clone()));
        (mem::take(&mut self.dropped), known.collect())
    }

    /// Records that could not be removed are obsolete still, unless their tenants have come back.
    fn drop_again(&mut self, dropped: HashSet<String>) {
        for name in dropped {
            match self.all.get(&name) {
                Some(texts) => lock(texts).changes += 1,
                None => drop(self.dropped.insert(name)),
            }
        }
    }
}

/// A panic loses at most what was learned from one text.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names a text, also after a restart. A tenant that finds two texts of one hash confuses its own prompts only.
fn hash(text: &str) -> u64 {
    let hash = blake3::derive_key("kvik 2026-11-29 settled text v1", text.as_bytes());
    u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
}

impl TenantTexts {
    /// The form by which a text is settled, after learning from it if it is new.
    fn learned(&mut self, text: &str, hash: u64) -> Option<Arc<TextForm>> {
        if let Some(known) = self.used(hash) {
            return known;
        }
        let form = match self.compared(text)? {
            Compared::Alike { index, form, places } => {
                self.places = places;
                self.forms.remove(index).filter(|known| **known == form).unwrap_or_else(|| Arc::new(form))
            }
            Compared::New(form) => Arc::new(form),
        };
        self.forms.push_front(form.clone());
        self.forms.truncate(self.forms_kept());
        let outcome = form.has_places().then_some(form);
        self.changes += 1;
        self.outcomes.push_front((hash, outcome.clone()));
        self.outcomes.truncate(self.outcomes_kept());
        outcome
    }

    /// The form by which a text would be settled.
    fn known(&self, text: &str, hash: u64) -> Option<Arc<TextForm>> {
        if let Some(known) = self.outcome(hash) {
            return known;
        }
        match self.compared(text)? {
            Compared::Alike { form, .. } => form.has_places().then(|| Arc::new(form)),
            Compared::New(_) => None,
        }
    }

    /// The outcome of a text that is used again. A session that runs uses its own, however many others begin.
    fn used(&mut self, hash: u64) -> Option<Option<Arc<TextForm>>> {
        let index = self.outcomes.iter().position(|(known, _)| *known == hash)?;
        let used = self.outcomes.remove(index)?;
        let form = used.1.clone();
        self.outcomes.push_front(used);
        Some(form)
    }

    fn outcome(&self, hash: u64) -> Option<Option<Arc<TextForm>>> {
        self.outcomes.iter().find(|(known, _)| *known == hash).map(|(_, form)| form.clone())
    }

    /// Compares a new text with the known forms; `None` if it has too many sentences.
    fn compared(&self, text: &str) -> Option<Compared> {
        let sentences = form::sentences(text)?;
        let alike = self.forms.iter().enumerate().find_map(|(index, form)| {
            let mut places = self.places;
            let form = form.and_of(&sentences, &mut || {
                places += 1;
                places
            })?;
            Some(Compared::Alike { index, form, places })
        });
        Some(alike.unwrap_or_else(|| Compared::New(TextForm::of(&sentences))))
    }

    /// The number of forms that may stay.
    fn forms_kept(&self) -> usize {
        let mut bytes = 0;
        let fits = |form: &&Arc<TextForm>| {
            bytes += form.bytes();
            bytes <= FORMS_BYTES_MAX
        };
        self.forms.iter().take(FORMS_MAX).take_while(fits).count()
    }

    /// The number of outcomes that may stay. A form that several of them share is counted once.
    fn outcomes_kept(&self) -> usize {
        let (mut bytes, mut counted) = (0, HashSet::new());
        for (index, (_, form)) in self.outcomes.iter().enumerate().take(TEXTS_MAX) {
            if let Some(form) = form.as_ref().filter(|form| counted.insert(Arc::as_ptr(form))) {
                bytes += form.bytes();
            }
            if bytes > OUTCOMES_BYTES_MAX {
                return index;
            }
        }
        self.outcomes.len().min(TEXTS_MAX)
    }
}

/// A text beside the known forms.
enum Compared {
    /// It has the form at this index, which is now this one; so many places have a number then.
    Alike {
        index: usize,
        form: TextForm,
        places: u32,
    },
    New(TextForm),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system message of an agent in this directory, on this day.
    fn system(directory: &str, day: &str) -> String {
        let rules: String =
            (0..12).map(|rule| format!("Rule {rule} of the house is to be kept.\n")).collect();
        format!("You are an agent.\nDirectory: {directory}\nToday is {day}.\n{rules}Be brief.\n")
    }

    fn notes(settled: &Settled) -> Vec<&str> {
        settled.notes.iter().map(|note| note.text.as_str()).collect()
    }

    #[test]
    fn texts_that_differ_in_a_place_are_settled_to_one() {
        let settler = Settler::default();
        assert_eq!(
            settler.settle("t", &system("/a", "Monday"), false, Learning::On),
            None,
            "the first one is compared with none"
        );
        let two = settler.settle("t", &system("/b", "Monday"), false, Learning::On).unwrap();
        let three = settler.settle("t", &system("/c/d", "Monday"), false, Learning::On).unwrap();
        assert_eq!(two.text, three.text);
        assert_eq!((notes(&two), notes(&three)), (vec!["Directory: /b"], vec!["Directory: /c/d"]));
        assert!(two.text.contains("Today is Monday.") && !two.text.contains("/b"), "{}", two.text);
    }

    #[test]
    fn sentences_without_blanks_between_them_are_settled_too() {
        let settler = Settler::default();
        let rules: String = (0..12).map(|rule| format!("第{rule}条规则必须遵守。")).collect();
        let [first, second] = ["/home/a/shop", "/home/a/bank"].map(|directory| {
            let text = format!("你是编程助手。当前目录是{directory}。请用中文回答。{rules}");
            settler.settle("t", &text, false, Learning::On)
        });
        assert_eq!(first, None);
        assert_eq!(notes(&second.unwrap()), ["当前目录是/home/a/bank。"]);
    }

    #[test]
    fn a_text_keeps_its_outcome_when_more_is_learned() {
        let settler = Settler::default();
        let all = [("/a", "Monday"), ("/b", "Monday"), ("/b", "Tuesday")].map(|(at, day)| system(at, day));
        let first: Vec<_> = all.iter().map(|text| settler.settle("t", text, false, Learning::On)).collect();
        let again: Vec<_> = all.iter().map(|text| settler.settle("t", text, false, Learning::On)).collect();
        assert_eq!(first, again);
        let both = settler.settle("t", &system("/c", "Friday"), false, Learning::On).unwrap();
        assert_eq!(Some(&both.text), first[2].as_ref().map(|settled| &settled.text));
    }

    #[test]
    fn a_session_that_runs_keeps_its_form_however_many_others_begin() {
        let settler = Settler::default();
        let asks = |text: &str| settler.settle("t", text, false, Learning::On);
        asks(&system("/a", "0"));
        let session = system("/b", "0");
        let form = asks(&session);
        assert!(form.is_some());
        for day in 1..TEXTS_MAX + 3 {
            asks(&system("/c", &day.to_string()));
            assert_eq!(asks(&session), form, "day {day}");
        }
    }

    #[test]
    fn tenants_learn_nothing_from_each_other() {
        let settler = Settler::default();
        settler.settle("t", &system("/a", "Monday"), false, Learning::On);
        assert_eq!(settler.settle("u", &system("/b", "Monday"), false, Learning::On), None);
        assert!(settler.forget(Some("t")).unwrap() && !settler.forget(Some("v")).unwrap());
        assert_eq!(settler.settle("t", &system("/b", "Monday"), false, Learning::On), None);
    }

    #[test]
    fn what_was_learned_outlives_the_process_until_it_is_forgotten() {
        let records = Records::in_memory();
        let learn = |settler: &Settler, tenant: &str, at: &str| {
            settler.settle(tenant, &system(at, "Monday"), false, Learning::On)
        };
        let settler = Settler::open(Some(&records));
        let learned: Vec<_> = ["/a", "/b"].map(|at| learn(&settler, "t", at)).into();
        learn(&settler, "u", "/a");
        settler.write().unwrap();
        let settler = Settler::open(Some(&records));
        let again: Vec<_> = ["/a", "/b"].map(|at| learn(&settler, "t", at)).into();
        assert_eq!(again, learned, "a session that was not settled stays so");
        let text = |settled: &Option<Settled>| settled.as_ref().map(|settled| settled.text.clone());
        assert_eq!(text(&learn(&settler, "t", "/c")), text(&learned[1]));
        settler.forget(Some("t")).unwrap();
        settler.write().unwrap();
        let settler = Settler::open(Some(&records));
        assert_eq!(learn(&settler, "t", "/c"), None);
        assert!(learn(&settler, "u", "/b").is_some(), "another tenant's");
        settler.write().unwrap();
        settler.forget(None).unwrap();
        let settler = Settler::open(Some(&records));
        assert_eq!(["t", "u"].map(|tenant| learn(&settler, tenant, "/d")), [None, None]);
    }

    #[test]
    fn removed_records_are_rewritten_until_that_succeeds() {
        let records = Records::in_memory();
        let settler = Settler::open(Some(&records));
        let learn = |tenant: &str| {
            settler.settle(tenant, &system("/a", "Monday"), false, Learning::On);
        };
        let rewrites = || {
            let mut count = 0;
            let rewrite = || {
                count += 1;
                Ok(())
            };
            settler.erase(Some("t"), rewrite).unwrap();
            count
        };
        assert_eq!([rewrites(), rewrites()], [1, 0], "those of an earlier process");
        learn("t");
        settler.write().unwrap();
        assert!(settler.erase(Some("t"), || Err(RecordsError::Unavailable("full".to_owned()))).is_err());
        assert_eq!([rewrites(), rewrites()], [1, 0], "those whose rewrite failed");
        learn("t");
        settler.write().unwrap();
        (0..TENANTS_MAX).for_each(|tenant| learn(&tenant.to_string()));
        settler.write().unwrap();
        assert_eq!([rewrites(), rewrites()], [1, 0], "those of the least recently seen tenant");
    }

    #[test]
    fn other_texts_and_those_of_no_size_stay_as_they_are() {
        let settler = Settler::default();
        let long = |subject: &str| (0..40).map(|i| format!("{subject} has part {i}. ")).collect::<String>();
        for text in [long("A house"), long("A ship"), "Be brief.".to_owned(), "x".repeat(TEXT_BYTES_MAX + 1)]
        {
            assert_eq!(settler.settle("t", &text, false, Learning::On), None, "{}", &text[..9]);
        }
        let lines = |first: &str| format!("{first}\n{}", ".\n".repeat(SENTENCES_MAX));
        assert_eq!(settler.settle("t", &lines("a"), false, Learning::On), None);
        assert_eq!(settler.settle("t", &lines("b"), false, Learning::On), None);
    }

    #[test]
    fn what_is_known_of_tenants_is_bounded() {
        let settler = Settler::default();
        for tenant in 0..TENANTS_MAX + 3 {
            settler.settle(&tenant.to_string(), &system("/a", "Monday"), false, Learning::On);
        }
        for day in 0..TEXTS_MAX + 3 {
            settler.settle("one", &system("/a", &day.to_string()), false, Learning::On);
        }
        let mut tenants = settler.tenants.lock().unwrap();
        assert_eq!((tenants.all.len(), tenants.order.len()), (TENANTS_MAX, TENANTS_MAX));
        assert_eq!(tenants.dropped, (0..4).map(|tenant| tenant.to_string()).collect());
        let one = tenants.of("one");
        let one = one.lock().unwrap();
        assert_eq!((one.outcomes.len(), one.forms.len()), (TEXTS_MAX, 1));
        drop((one, tenants));
        // As many of the size of descriptions, and then some of the size of system messages.
        for (parts, length, count) in [(30, 10, FORMS_MAX), (1000, 112, 8)] {
            for subject in 0..count + 3 {
                let part = |part| format!("{subject} has {part} {}. ", "x".repeat(length));
                let text: String = (0..parts).map(part).collect();
                settler.settle("many", &text, false, Learning::On);
            }
            let many = lock(&settler.tenants).of("many");
            assert_eq!(lock(&many).forms.len(), count);
        }
    }
}
