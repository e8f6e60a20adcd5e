//! Whether a text of the model can stand for the messages that it was asked to summarise.
//!
//! Weak models answer with politeness, with their last answer again, or without an end. Every check compares words and
//! reads each text once, so a judgement costs less than a token.

use std::collections::HashSet;

use serde_json::Value;

use super::facts::Facts;
use super::language::Languages;
use super::sentences::{key, sentences, whole};
use super::{Replaced, is_spoken};
use crate::context::chain::text_of;

/// Sentences that answer and say nothing.
const ACKNOWLEDGEMENTS: &str = "I see|I understand|Understood|Okay|Ok|Sure|Of course|Certainly|Got it|Noted|Yes|No|Hi|\
    Hello|Thanks|Thank you|You are welcome|You're welcome|I'm glad to hear that|That's great|I'm sorry|Ja|Nein|Gut|Gern|\
    Danke|Alles klar|Verstanden|Ich verstehe|D'accord|Entendido|好的|明白了|我明白了|知道了|谢谢";
/// Words of a run that are compared: the items of a list may begin alike, but not with so many words.
const RUN: usize = 6;
/// Facts that were said, for each that a summary needs, and the most that it needs.
const SAID_PER_FACT: usize = 16;
const FACTS_MAX: usize = 3;
/// Facts that the user told, of which a summary needs one whatever else it says: a single one may be a mention.
const TOLD_MIN: usize = 2;
/// Words that a summary without facts needs at most, and words that were said for each.
const WORDS_MAX: usize = 3;
const SAID_PER_WORD: usize = 4;
/// Of the words of a summary without facts, one in so many at least was said.
const OWN_PER_WORD: usize = 3;
/// Of the words of an earlier summary, one in so many at least is in the next one.
const EARLIER_PER_WORD: usize = 4;

/// Why a text cannot stand for what it was to summarise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// It is empty, or only acknowledges.
    Empty,
    /// It repeats itself.
    RepeatsItself,
    /// Each of its sentences is one that the model has answered before.
    RepeatsAnswers,
    /// It is in a script or language that was not spoken.
    OtherLanguage,
    /// It has next to nothing of the earlier summary.
    Forgets,
    /// It has next to nothing of the names, numbers and words that were said.
    SaysNothing,
    /// It is longer than it was told, and has no whole sentence within that.
    TooLong,
}

impl Flaw {
    /// Name in metrics and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Flaw::Empty => "empty",
            Flaw::RepeatsItself => "repeats_itself",
            Flaw::RepeatsAnswers => "repeats_answers",
            Flaw::OtherLanguage => "other_language",
            Flaw::Forgets => "forgets",
            Flaw::SaysNothing => "says_nothing",
            Flaw::TooLong => "too_long",
        }
    }
}

/// A summary as the model gave it.
#[derive(Debug, Clone, Copy)]
pub struct SummaryDraft<'a> {
    /// Its text, without thoughts.
    pub text: &'a str,
    /// Tokens that were generated for it.
    pub tokens: usize,
    /// Tokens that it may have: a draft of as many was cut off.
    pub tokens_max: usize,
}

/// Returns the part of a draft that can stand for what it summarises: all of it, or its whole sentences if it was cut
/// off.
///
/// # Errors
/// The first flaw that is found.
pub fn judge<'a>(draft: &SummaryDraft<'a>, replaced: &Replaced<'_>) -> Result<&'a str, Flaw> {
    let text = draft.whole()?;
    let said: Vec<String> = sentences(text).map(key).collect();
    let acknowledgements: HashSet<String> = ACKNOWLEDGEMENTS.split('|').map(key).collect();
    if said.iter().all(|sentence| acknowledgements.contains(sentence)) {
        return Err(Flaw::Empty);
    }
    if repeats_itself(&said) {
        return Err(Flaw::RepeatsItself);
    }
    if repeats_answers(&said, replaced) {
        return Err(Flaw::RepeatsAnswers);
    }
    if is_in_other_language(text, replaced) {
        return Err(Flaw::OtherLanguage);
    }
    let (own, earlier) = (Facts::of(text), Facts::of(replaced.summary));
    if forgets(&own, &earlier) {
        return Err(Flaw::Forgets);
    }
    if says_nothing(&own, earlier, replaced) { Err(Flaw::SaysNothing) } else { Ok(text) }
}

impl<'a> SummaryDraft<'a> {
    fn whole(&self) -> Result<&'a str, Flaw> {
        let text = self.text.trim();
        if text.is_empty() || self.tokens < self.tokens_max {
            return Ok(text);
        }
        Some(whole(text)).filter(|whole| !whole.is_empty()).ok_or(Flaw::TooLong)
    }
}

/// True if half of the words are in sentences that stood before, or half of the runs of words are no new ones. The
/// detector of loops in answers cannot tell: a summary ends before it would call a repetition a loop.
fn repeats_itself(said: &[String]) -> bool {
    let (mut seen, mut again, mut words) = (HashSet::new(), 0, Vec::new());
    for sentence in said {
        let before = words.len();
        words.extend(sentence.split(' '));
        if !seen.insert(sentence) {
            again += words.len() - before;
        }
    }
    let runs = words.windows(RUN);
    let (all, different) = (runs.len(), runs.collect::<HashSet<_>>().len());
    (again > 0 && again * 2 >= words.len()) || (all >= RUN && different * 2 < all)
}

fn repeats_answers(said: &[String], replaced: &Replaced<'_>) -> bool {
    let mut answered = HashSet::new();
    for message in replaced.messages.iter().filter(|message| message["role"] == "assistant") {
        answered.extend(sentences(&text_of(message)).map(key));
    }
    said.iter().all(|sentence| answered.contains(sentence))
}

fn is_in_other_language(text: &str, replaced: &Replaced<'_>) -> bool {
    let [mut own, mut spoken] = [Languages::default(), Languages::default()];
    own.add(text);
    spoken.add(replaced.summary);
    replaced
        .messages
        .iter()
        .filter(|message| is_spoken(message))
        .for_each(|message| spoken.add(&text_of(message)));
    own.is_foreign_to(&spoken)
}

/// True if a text drops what was known before: it stands for that too.
fn forgets(own: &Facts, earlier: &Facts) -> bool {
    earlier.words.iter().filter(|word| own.has(word)).count() * EARLIER_PER_WORD < earlier.words.len()
}

/// True if a text has none of the facts that the user told, or too few of the facts that were said, and too few of the
/// words, or many that were not.
fn says_nothing(own: &Facts, earlier: Facts, replaced: &Replaced<'_>) -> bool {
    let mut said = earlier;
    let (users, others): (Vec<&Value>, Vec<&Value>) =
        replaced.messages.iter().partition(|message| message["role"] == "user");
    users.into_iter().for_each(|message| said.add(&text_of(message)));
    if said.told().count() >= TOLD_MIN && !said.told().any(|fact| own.has(fact)) {
        return true;
    }
    others.into_iter().for_each(|message| said.add(&text_of(message)));
    let facts = said.facts.iter().filter(|fact| own.has(fact)).count();
    let words = said.words.iter().filter(|word| own.has(word)).count();
    let facts_min = (said.facts.len() / SAID_PER_FACT).clamp(1, FACTS_MAX);
    let words_min = (said.words.len() / SAID_PER_WORD).min(WORDS_MAX);
    let is_about_it = words >= words_min && words * OWN_PER_WORD >= own.words.len();
    !said.words.is_empty() && facts < facts_min && !is_about_it
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn conversation(said: &[[&str; 2]]) -> Vec<Value> {
        let exchange = |[user, assistant]: &[&str; 2]| {
            [json!({"role": "user", "content": user}), json!({"role": "assistant", "content": assistant})]
        };
        said.iter().flat_map(exchange).collect()
    }

    fn english() -> Vec<Value> {
        conversation(&[
            ["My dog is called Bolt, and he is three years old.", "I'm glad to hear that."],
            [
                "I work at the harbour of Oslo, my locker there is number 4711.",
                "That sounds like a busy place.",
            ],
            [
                "The bus was late again, so I had noodles for lunch.",
                "I hope tomorrow is a better day for you.",
            ],
            ["Please call the boat \"Seagull\" from now on.", "Of course."],
        ])
    }

    fn german() -> Vec<Value> {
        conversation(&[
            ["Mein Hund heißt Bolt und ist drei Jahre alt.", "Das freut mich, Hunde sind gute Begleiter."],
            [
                "Ich arbeite im Hafen von Köln, mein Schrank ist die Nummer 4711.",
                "Das ist ein Ort mit viel Betrieb.",
            ],
            ["Der Bus war wieder zu spät, also gab es Nudeln.", "Ich hoffe, morgen wird es besser."],
        ])
    }

    fn chinese() -> Vec<Value> {
        conversation(&[
            ["我的狗叫闪电，今年三岁。", "听到这个消息我很高兴。"],
            ["我在上海的港口上班，柜子的号码是 4711。", "那里一定很忙。"],
            ["公共汽车又晚点了，所以午饭吃了面条。", "希望明天会更好。"],
        ])
    }

    fn verdict(text: &str, messages: &[Value]) -> Result<(), Flaw> {
        let draft = SummaryDraft { text, tokens: 20, tokens_max: 128 };
        judge(&draft, &Replaced { summary: "", messages }).map(drop)
    }

    #[test]
    fn what_can_stand_for_a_conversation_passes() {
        let (english, german, chinese) = (english(), german(), chinese());
        for (text, messages) in [
            ("Facts: dog = Bolt; home = Oslo", &english),
            (
                "- The user has a dog, Bolt (3).\n- Works in Oslo, locker 4711.\n- The boat is Seagull.",
                &english,
            ),
            (
                "The user's dog is called Bolt. The user's boat is called Seagull. The user's locker is 4711.",
                &english,
            ),
            ("Der Hund des Nutzers heißt Bolt. Er arbeitet im Hafen von Köln, Schrank 4711.", &german),
            ("- Hund: Bolt\n- Arbeit: Hafen, Köln\n- Schrank: 4711", &german),
            ("用户的狗叫闪电，在上海的港口上班，柜子号码是4711。", &chinese),
            ("狗叫闪电；在上海工作", &chinese),
        ] {
            assert_eq!(verdict(text, messages), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_says_nothing_has_its_flaw() {
        let (english, german, chinese) = (english(), german(), chinese());
        let invented = "Paris has many museums, theatres and fountains that tourists admire every summer.";
        for (text, messages, flaw) in [
            ("", &english, Flaw::Empty),
            ("I see.", &english, Flaw::Empty),
            ("Okay. Got it!", &english, Flaw::Empty),
            ("1. ", &english, Flaw::Empty),
            ("Alles klar, danke.", &german, Flaw::SaysNothing),
            ("Verstanden.", &german, Flaw::Empty),
            ("好的，", &chinese, Flaw::Empty),
            ("明白了。谢谢！", &chinese, Flaw::Empty),
            (&"Bolt is a good dog. ".repeat(12)[..], &english, Flaw::RepeatsItself),
            (&"Bolt and his dog and ".repeat(12)[..], &english, Flaw::RepeatsItself),
            (&"闪电是一只好狗，".repeat(12)[..], &chinese, Flaw::RepeatsItself),
            ("That sounds like a busy place.", &english, Flaw::RepeatsAnswers),
            ("Of course. That sounds like a BUSY place!", &english, Flaw::RepeatsAnswers),
            ("Das ist ein Ort mit viel Betrieb.", &german, Flaw::RepeatsAnswers),
            ("那里一定很忙。", &chinese, Flaw::RepeatsAnswers),
            ("用户的狗叫闪电，在港口上班，柜子号码是4711。", &english, Flaw::OtherLanguage),
            (
                "The user has a dog that is called Bolt and works at the harbour of the town.",
                &german,
                Flaw::OtherLanguage,
            ),
            ("The user has a dog and works at the harbour.", &chinese, Flaw::OtherLanguage),
            ("ユーザーの犬はいなずまといいます。港で働いています。", &chinese, Flaw::OtherLanguage),
            (
                "This is a summary of the conversation between the user and the assistant.",
                &english,
                Flaw::SaysNothing,
            ),
            ("I'm happy to help you with anything, just let me know!", &english, Flaw::SaysNothing),
            ("Facts: none", &english, Flaw::SaysNothing),
            // Words of the conversation, and none of the four names and numbers that the user told.
            ("The user complained of a late bus and had noodles for lunch.", &english, Flaw::SaysNothing),
            (invented, &english, Flaw::SaysNothing),
            ("Es war ein schönes Gespräch über dies und jenes.", &german, Flaw::SaysNothing),
            ("今天天气很好，我们一起去公园玩吧。", &chinese, Flaw::SaysNothing),
        ] {
            assert_eq!(verdict(text, messages), Err(flaw), "{text}");
        }
    }

    #[test]
    fn what_was_cut_off_ends_with_a_whole_sentence() {
        let messages = english();
        let replaced = Replaced { summary: "", messages: &messages };
        let cut = |text| judge(&SummaryDraft { text, tokens: 16, tokens_max: 16 }, &replaced);
        assert_eq!(cut("The dog is called Bolt. The user lives in Os"), Ok("The dog is called Bolt."));
        assert_eq!(cut("Bolt the dog, the harbour of Oslo, the locker 4711 and the"), Err(Flaw::TooLong));
        assert_eq!(cut("  "), Err(Flaw::Empty));
    }

    #[test]
    fn what_was_said_before_is_in_the_earlier_summary() {
        let messages = conversation(&[["The bus number 7 was late again.", "I see."]]);
        let draft = SummaryDraft { text: "Facts: cat = Luna", tokens: 9, tokens_max: 16 };
        let judged = |summary| judge(&draft, &Replaced { summary, messages: &messages });
        assert_eq!(judged("Facts: cat = Luna; home = Oslo"), Ok("Facts: cat = Luna"));
        assert_eq!(judged(""), Err(Flaw::SaysNothing));
    }

    #[test]
    fn the_earlier_summary_is_not_forgotten() {
        let messages =
            conversation(&[["The bus number 19 was late again. My dog is called Rex now.", "I see."]]);
        let earlier =
            "- Locker code: 4711\n- Colour: turquoise\n- Car: green Volvo\n- Lives in Oslo\n- Dog: Bolt";
        for (text, verdict) in [
            ("The bus number 19 was late again.", Err(Flaw::Forgets)),
            ("- Locker 4711\n- Lives in Oslo", Ok("- Locker 4711\n- Lives in Oslo")),
        ] {
            let draft = SummaryDraft { text, tokens: 9, tokens_max: 32 };
            assert_eq!(judge(&draft, &Replaced { summary: earlier, messages: &messages }), verdict);
        }
        let draft = SummaryDraft { text: "Facts: dog = Rex", tokens: 9, tokens_max: 32 };
        let changed = Replaced { summary: "Facts: dog = Bolt", messages: &messages };
        assert_eq!(judge(&draft, &changed), Ok("Facts: dog = Rex"));
    }

    #[test]
    fn of_nothing_anything_can_be_said() {
        let draft = SummaryDraft { text: "Nothing.", tokens: 2, tokens_max: 9 };
        assert_eq!(
            judge(&draft, &Replaced { summary: "", messages: &conversation(&[["", ""]]) }),
            Ok("Nothing.")
        );
    }

    proptest! {
        #[test]
        fn a_verdict_is_given_of_any_text(
            text in "\\PC{0,60}",
            summary in "\\PC{0,20}",
            said in prop::collection::vec("(\\PC|[A-Za-z0-9 .;\"]){0,40}", 0..4),
            tokens in 0usize..4,
        ) {
            let messages: Vec<Value> = said.iter().map(|text| json!({"role": "assistant", "content": text})).collect();
            let replaced = Replaced { summary: &summary, messages: &messages };
            if let Ok(used) = judge(&SummaryDraft { text: &text, tokens, tokens_max: 2 }, &replaced) {
                prop_assert!(text.contains(used) && !used.is_empty());
            }
        }

        #[test]
        fn what_is_said_twice_is_no_summary(text in "([A-Z][a-z]{3,9} ){2,6}is [0-9]{3}\\.") {
            let messages = [json!({"role": "user", "content": text})];
            prop_assert_eq!(verdict(&text, &messages), Ok(()));
            prop_assert_eq!(verdict(&format!("{text} {text} {text}"), &messages), Err(Flaw::RepeatsItself));
        }
    }
}
