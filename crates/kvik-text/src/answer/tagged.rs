//! Answers whose parts are separated by tags.

use std::sync::Arc;

use super::read::{Beginning, CallRead, FENCE, Offer};
use super::reasoning::ReasoningTags;
use super::search::TagSearch;
use super::sent::Sent;
use super::trial::Trial;
use super::waiting::Waiting;
use super::{AnswerDelta, call_id, partial_tag};

/// A parser of an answer whose parts are separated by tags.
#[derive(Debug)]
pub(super) struct Tagged {
    tags: ReasoningTags,
    state: State,
    /// Tools that may be called; without any, calls are content.
    offer: Option<Arc<Offer>>,
    /// Part of the ids of tool calls.
    salt: String,
    /// Text that is not classified yet.
    pending: String,
    /// The search for the end of reasoning in it.
    search: TagSearch,
    /// Whether the last text was a tag, so that following line breaks are dropped.
    after_tag: bool,
    /// Whether text other than white space has been emitted since the last tag.
    emitted: bool,
    /// Whether a tag was seen: then white space at the end is format, not text.
    tagged: bool,
    /// Whether reasoning can still begin: it precedes all content.
    may_reason: bool,
    /// Whether the model may repeat the opening tag of reasoning that the prompt has opened.
    may_reopen: bool,
    /// The text that closes the content, once it was opened.
    response_end: Option<&'static str>,
    /// Whether no content has been emitted yet, so that a call without a tag can begin.
    at_start: bool,
    /// Calls in reasoning that may end the answer, and the parser of their text.
    trial: Option<(Trial, Box<Tagged>)>,
    /// Whether a call has deviated from the form, so that constraints may not apply to the following text.
    strayed: bool,
    calls: usize,
}

/// A text that ends the content.
struct End {
    text: String,
    /// Whether the text ends the content only before any other content.
    first: bool,
    means: Means,
}

#[derive(Debug, Clone, Copy)]
enum Means {
    Call(Beginning),
    Reasoning,
    /// Content, which this text closes.
    Response(&'static str),
    /// Not part of the answer.
    Nothing,
}

#[derive(Debug)]
enum State {
    Reasoning,
    Content,
    /// In text that may be a call.
    Calling(Calling),
    /// After a call, where another one without a tag of its own may follow.
    Between,
    /// The maximum number of calls has been read; all text after them is dropped.
    Over,
}

/// A possible call that is not complete.
#[derive(Debug)]
struct Calling {
    /// White space and separators before the beginning, which are format if there is a call.
    before: String,
    /// The text removed as the call's beginning; it becomes content if there is no call.
    taken: String,
    /// Whether `before` follows a tag.
    after_tag: bool,
    beginning: Beginning,
    wait: Waiting,
    /// The emitted part of its arguments, once the call is certain.
    sent: Option<Sent>,
}

impl Tagged {
    /// `starts_in_reasoning` if the prompt ended with open reasoning; without an `offer` calls are content.
    pub(super) fn new(
        tags: ReasoningTags,
        starts_in_reasoning: bool,
        offer: Option<Arc<Offer>>,
        salt: &str,
    ) -> Tagged {
        Tagged {
            tags,
            state: if starts_in_reasoning { State::Reasoning } else { State::Content },
            offer,
            salt: salt.into(),
            pending: String::new(),
            search: TagSearch::default(),
            after_tag: starts_in_reasoning,
            emitted: false,
            tagged: starts_in_reasoning,
            may_reason: true,
            may_reopen: starts_in_reasoning,
            response_end: None,
            at_start: true,
            trial: None,
            strayed: false,
            calls: 0,
        }
    }

    /// See [`AnswerParser::unconstrain`](super::AnswerParser::unconstrain).
    pub(super) fn unconstrain(&mut self) {
        Offer::unconstrain(&mut self.offer);
    }

    /// Adds text; returns the parts that it completes.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.step(false, &mut deltas) {}
        deltas
    }

    /// Ends the answer; returns the text that was held back.
    pub(super) fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        while self.step(true, &mut deltas) {}
        let rest = std::mem::take(&mut self.pending);
        self.search = TagSearch::default();
        let calls = self.trial.take().and_then(|(trial, mut parser)| trial.finish(parser.finish()));
        match self.state {
            State::Reasoning if calls.is_some() => deltas.extend(calls.into_iter().flatten()),
            State::Reasoning => self.push_reasoning(&rest, &mut deltas),
            State::Content if self.tagged && !self.emitted && rest.trim().is_empty() => {}
            State::Content => self.push_content(&rest, &mut deltas),
            State::Between | State::Over | State::Calling(_) => {}
        }
        deltas
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub(super) fn held_bytes(&self) -> usize {
        let pending = self.pending.len();
        match &self.state {
            State::Calling(Calling { sent: Some(sent), .. }) => pending.saturating_sub(sent.until),
            State::Calling(Calling { before, taken, .. }) => before.len() + taken.len() + pending,
            State::Reasoning | State::Content | State::Between | State::Over => pending,
        }
    }

    /// Classifies as much of the pending text as possible; returns whether the state has changed. `done` if
    /// no more text follows.
    fn step(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        match &self.state {
            State::Reasoning => self.step_reasoning(deltas),
            State::Content => self.step_content(deltas),
            State::Calling(_) => self.step_calling(done, deltas),
            State::Between => self.step_between(done),
            State::Over => {
                self.pending.clear();
                false
            }
        }
    }

    fn step_reasoning(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if self.may_reopen {
            let start = self.pending.trim_start();
            if start.len() < self.tags.open.len() && self.tags.open.starts_with(start) {
                return false;
            }
            if let Some(rest) = start.strip_prefix(self.tags.open) {
                self.pending = rest.to_owned();
            }
            self.may_reopen = false;
        }
        match self.search.find(&self.pending, &[self.tags.close]) {
            Some((at, _)) => {
                let rest = self.pending.split_off(at + self.tags.close.len());
                let thought = std::mem::replace(&mut self.pending, rest);
                self.search = TagSearch::default();
                self.push_reasoning(thought[..at].trim_end_matches('\n'), deltas);
                self.trial = None;
                self.enter(State::Content);
                self.at_start = true;
                true
            }
            None => self.step_thought(deltas),
        }
    }

    /// Emits reasoning, except for calls that may end it.
    fn step_thought(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        let offer = self.offer.clone();
        let marker = offer.as_ref().map_or("", |offer| offer.form.marker());
        let at = if marker.is_empty() { None } else { self.pending.find(marker) };
        let (Some(offer), Some(at)) = (&offer, at) else {
            let tags = [self.tags.close, marker];
            let thought = self.take_decided(&tags[..if marker.is_empty() { 1 } else { 2 }]);
            self.push_thought(&thought, deltas);
            return false;
        };
        let (trial, parser) = self.trial.get_or_insert_with(|| {
            let trial = Trial::new(offer);
            let parser = Tagged::new(self.tags, false, Some(trial.offer().clone()), &self.salt);
            (trial, Box::new(parser))
        });
        if trial.push(&self.pending[at..], |text| parser.push(text)) {
            let thought: String = self.pending.drain(..self.pending[..at].trim_end().len()).collect();
            self.push_thought(&thought, deltas);
            return false;
        }
        self.trial = None;
        let thought: String = self.pending.drain(..at + marker.len()).collect();
        self.push_thought(&thought, deltas);
        true
    }

    fn step_content(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if let Some(beginning) = self.json_beginning() {
            let white = self.pending.len() - self.pending.trim_start().len();
            let taken = self.pending.drain(..white).collect();
            self.begin_call(String::new(), taken, beginning);
            return true;
        }
        let ends = self.ends();
        let found = ends.iter().filter_map(|end| Some((self.pending.find(&*end.text)?, end)));
        let allowed =
            found.filter(|(at, end)| !end.first || (!self.emitted && self.pending[..*at].trim().is_empty()));
        match allowed.min_by_key(|(at, end)| (*at, end.text.clone())) {
            Some((at, end)) => {
                let rest = self.pending.split_off(at + end.text.len());
                let text = std::mem::replace(&mut self.pending, rest);
                let text = &text[..at];
                let has_text = self.emitted || !text.trim().is_empty();
                let (content, breaks) =
                    text.split_at(if has_text { text.trim_end_matches('\n').len() } else { 0 });
                self.push_content(content, deltas);
                self.pass(end.means, breaks, &end.text);
                true
            }
            None => {
                let texts: Vec<&str> = ends.iter().map(|end| &*end.text).collect();
                let text = self.take_decided(&texts);
                self.push_content(&text, deltas);
                // The emitted content may have ruled out reasoning, and thus the reason to hold text back.
                !text.is_empty()
            }
        }
    }

    /// Continues after a tag in the content; `breaks` are between it and the text before.
    fn pass(&mut self, means: Means, breaks: &str, tag: &str) {
        let was_at_start = self.at_start;
        match means {
            Means::Call(beginning) => self.begin_call(breaks.to_owned(), tag.to_owned(), beginning),
            Means::Reasoning => self.enter(State::Reasoning),
            Means::Response(end) => {
                self.enter(State::Content);
                (self.response_end, self.at_start) = (Some(end), was_at_start);
            }
            Means::Nothing => {
                self.response_end = None;
                self.enter(State::Content);
            }
        }
    }

    /// Texts that may end the content.
    fn ends(&self) -> Vec<End> {
        let end = |text: &str, first: bool, means: Means| End { text: text.to_owned(), first, means };
        let ReasoningTags { open, close, response, reserved } = self.tags;
        let mut ends = Vec::new();
        if let Some(offer) = &self.offer {
            let call = |text: &str, beginning| end(text, false, Means::Call(beginning));
            ends.extend(offer.form.markers().into_iter().map(|marker| call(marker, Beginning::Marker)));
            let later = offer.form.later_tags();
            ends.extend(later.iter().map(|(tag, behind)| call(tag, Beginning::Later(*behind))));
            ends.push(call(FENCE, Beginning::Fence));
        }
        if self.may_reason || reserved {
            ends.push(end(open, !reserved, Means::Reasoning));
        }
        if reserved {
            ends.push(end(close, false, Means::Nothing));
        }
        match (response, self.response_end) {
            (_, Some(text)) => ends.push(end(text, false, Means::Nothing)),
            // Unless they are reserved tokens, they might be part of the content.
            (Some([text, closes]), None) if reserved || self.after_tag => {
                ends.push(end(text, true, Means::Response(closes)));
            }
            _ => {}
        }
        ends
    }

    /// The beginning of a call, if the answer begins with JSON that may be one.
    fn json_beginning(&self) -> Option<Beginning> {
        let offer = self.offer.as_ref().filter(|_| self.at_start)?;
        let text = self.pending.trim_start();
        match offer.form.marker().is_empty() {
            true => text.starts_with(['{', '[']).then_some(Beginning::Marker),
            false => text.starts_with('{').then_some(Beginning::Json),
        }
    }

    /// Continues with a possible call.
    fn begin_call(&mut self, before: String, taken: String, beginning: Beginning) {
        let (after_tag, wait) = (self.after_tag, Waiting::Any);
        self.enter(State::Calling(Calling { before, taken, after_tag, beginning, wait, sent: None }));
    }

    fn step_calling(&mut self, done: bool, deltas: &mut Vec<AnswerDelta>) -> bool {
        let (State::Calling(calling), Some(offer)) = (&mut self.state, &self.offer) else { return false };
        if !done && !calling.wait.is_over(&self.pending) {
            self.stream_arguments(deltas);
            return false;
        }
        let sent = calling.sent.as_ref().map(|sent| sent.bytes);
        match offer.read(&self.pending, calling.beginning, done) {
            CallRead::Call { name, arguments, end } => {
                let calls_max = offer.calls_max;
                self.strayed |= !calling.beginning.is_formal();
                self.pending.drain(..end);
                match sent {
                    Some(sent) => self.push_arguments(arguments.get(sent..).unwrap_or_default(), deltas),
                    None => self.push_call(name, arguments, deltas),
                }
                self.enter(if self.calls >= calls_max { State::Over } else { State::Between });
                true
            }
            CallRead::Incomplete(wait) if !done => {
                calling.wait = Waiting::on(wait, &self.pending);
                self.stream_arguments(deltas);
                false
            }
            // The answer was cut off inside a call that was already reported to the client.
            CallRead::Incomplete(_) | CallRead::NotACall if sent.is_some() => {
                self.pending.clear();
                self.enter(State::Over);
                false
            }
            CallRead::Incomplete(_) | CallRead::NotACall => {
                let (after_tag, text) = (calling.after_tag, [&*calling.before, &calling.taken].concat());
                self.enter(State::Content);
                self.after_tag = after_tag;
                self.push_content(&text, deltas);
                true
            }
        }
    }

    /// Emits new arguments of a call that a constraint makes certain and that is not complete. Text that is known to be
    /// no call is content nevertheless: a whole answer may be read of which it is not known that it was unconstrained.
    fn stream_arguments(&mut self, deltas: &mut Vec<AnswerDelta>) {
        let (State::Calling(calling), Some(offer)) = (&mut self.state, &self.offer) else { return };
        if calling.sent.is_none() {
            if self.strayed || !calling.beginning.is_formal() {
                return;
            }
            let Some((name, until)) = offer.begun(&calling.taken, &self.pending) else { return };
            let name = name.to_owned();
            calling.sent = Some(Sent::before(until));
            self.push_call(name, String::new(), deltas);
        }
        let State::Calling(Calling { sent: Some(sent), .. }) = &mut self.state else { return };
        let new = sent.more(&self.pending).to_owned();
        self.push_arguments(&new, deltas);
    }

    /// Handles the text after a call: another call of its section, the end of the section, or content. Lone
    /// end tags are ignored.
    fn step_between(&mut self, done: bool) -> bool {
        let Some(offer) = self.offer.clone() else { return false };
        let form = &offer.form;
        let in_section = !form.opening.is_empty() || form.marker().is_empty();
        let is_between = |c: char| c.is_whitespace() || (in_section && matches!(c, ',' | ';'));
        let rest = self.pending.trim_start_matches(is_between).to_owned();
        let between = self.pending[..self.pending.len() - rest.len()].to_owned();
        let (closing, lead) = match in_section {
            true => (form.closing.trim(), form.lead().trim()),
            false => ("", ""),
        };
        let lead = if in_section && form.object_lead().is_some() && lead.is_empty() { "{" } else { lead };
        let begins = |text: &str| !text.is_empty() && rest.starts_with(text);
        let closing_tags = form.closing_tags();
        let mut may_follow = [lead, closing].into_iter().chain(closing_tags.iter().copied());
        if begins(lead) || (in_section && form.begins_with_name(&rest)) {
            self.pending = rest;
            self.begin_call(between, String::new(), Beginning::Next);
        } else if begins(closing) {
            self.pending = rest[closing.len()..].to_owned();
            self.enter(State::Content);
        } else if let Some(tag) = closing_tags.iter().find(|tag| begins(tag)) {
            self.pending = rest[tag.len()..].to_owned();
        } else if may_follow.any(|text| !text.is_empty() && text.starts_with(&rest)) && (!done || in_section)
        {
            if done {
                self.pending.clear();
            }
            return false;
        } else {
            self.enter(State::Content);
        }
        true
    }

    fn push_call(&mut self, name: String, arguments: String, deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls;
        let id = call_id(&self.salt, index, &name);
        deltas.push(AnswerDelta::ToolCall { index, id, name, arguments });
        self.calls += 1;
    }

    /// Emits more arguments of the last call.
    fn push_arguments(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls.saturating_sub(1);
        match deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(
                AnswerDelta::Arguments { text: last, .. } | AnswerDelta::ToolCall { arguments: last, .. },
            ) => {
                last.push_str(text);
            }
            _ => deltas.push(AnswerDelta::Arguments { index, text: text.to_owned() }),
        }
    }

    fn enter(&mut self, state: State) {
        self.may_reason &= !matches!(state, State::Calling(_));
        self.state = state;
        self.after_tag = true;
        self.emitted = false;
        self.tagged = true;
        self.at_start = false;
    }

    /// Emits reasoning that was removed from the beginning of the pending text.
    fn push_thought(&mut self, thought: &str, deltas: &mut Vec<AnswerDelta>) {
        self.search.removed(thought.len());
        self.push_reasoning(thought, deltas);
    }

    fn push_reasoning(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.emitted = true;
            match deltas.last_mut() {
                Some(AnswerDelta::Reasoning(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Reasoning(text.into())),
            }
        }
    }

    fn push_content(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.emitted = true;
            self.may_reason = false;
            self.at_start = false;
            match deltas.last_mut() {
                Some(AnswerDelta::Content(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Content(text.into())),
            }
        }
    }

    fn without_breaks_after_tag<'t>(&mut self, text: &'t str) -> &'t str {
        if !self.after_tag {
            return text;
        }
        let text = text.trim_start_matches('\n');
        self.after_tag = text.is_empty();
        text
    }

    /// Removes and returns the pending text that cannot belong to a tag. White space before a possible tag stays.
    fn take_decided(&mut self, tags: &[&str]) -> String {
        if tags.is_empty() {
            return std::mem::take(&mut self.pending);
        }
        let partial = tags.iter().map(|tag| partial_tag(&self.pending, tag)).max().unwrap_or(0);
        let decided = self.pending[..self.pending.len() - partial].trim_end().len();
        let held = self.pending.split_off(decided);
        std::mem::replace(&mut self.pending, held)
    }
}
