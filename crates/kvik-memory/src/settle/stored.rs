//! What was learned from a tenant's texts, as it outlives the process: a record of the table `settled`, under the tenant's
//! name.

use std::{collections::VecDeque, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{FORMS_BYTES_MAX, FORMS_MAX, TEXTS_MAX, TenantTexts, form::TextForm};

/// What is known of a tenant. Outcomes of forms that newer ones have replaced are not in it: they would outweigh the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredTexts {
    /// Places that have a number.
    places: u32,
    /// From the most recently used on.
    forms: Vec<TextForm>,
    /// Hashes of texts, from the newest on, each with the index of its form; `None` for a text that stays as it is.
    outcomes: Vec<(u64, Option<usize>)>,
}

impl StoredTexts {
    pub(super) fn of(texts: &TenantTexts) -> StoredTexts {
        let index = |form: &Arc<TextForm>| texts.forms.iter().position(|known| Arc::ptr_eq(known, form));
        let outcomes = texts.outcomes.iter().filter_map(|(hash, form)| match form {
            None => Some((*hash, None)),
            Some(form) => index(form).map(|form| (*hash, Some(form))),
        });
        StoredTexts {
            places: texts.places,
            forms: texts.forms.iter().map(|form| (**form).clone()).collect(),
            outcomes: outcomes.collect(),
        }
    }

    /// The inverse of [`of`](StoredTexts::of); `None` for a record that no kvik has written.
    pub(super) fn texts(self) -> Option<TenantTexts> {
        let StoredTexts { places, forms, outcomes } = self;
        let bytes: usize = forms.iter().map(TextForm::bytes).sum();
        if forms.len() > FORMS_MAX
            || bytes > FORMS_BYTES_MAX
            || !forms.iter().all(|form| form.is_sound(places))
        {
            return None;
        }
        let forms: VecDeque<_> = forms.into_iter().map(Arc::new).collect();
        let outcome = |(hash, form): (u64, Option<usize>)| match form {
            None => Some((hash, None)),
            Some(index) => forms.get(index).map(|form| (hash, Some(form.clone()))),
        };
        let outcomes = outcomes.into_iter().take(TEXTS_MAX).filter_map(outcome).collect();
        Some(TenantTexts { forms, outcomes, places, ..TenantTexts::default() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form() -> impl Strategy<Value = TextForm> {
        let sentences = prop::collection::vec("[a-c]{0,3}[.] ", 0..4);
        let places = prop::collection::vec(prop::option::weighted(0.2, 0_u32..9), 6);
        let is_whole = prop::bool::weighted(0.9);
        (sentences, places, is_whole).prop_map(|(sentences, mut places, is_whole)| {
            places.truncate(sentences.len() + usize::from(is_whole));
            TextForm::with(sentences, places)
        })
    }

    proptest! {
        /// Whatever a record holds, it is refused, or what it teaches has bounds and settles every text without a panic.
        #[test]
        fn any_record_is_refused_or_sound(
            places in 0_u32..12,
            forms in prop::collection::vec(form(), 0..FORMS_MAX + 2),
            outcomes in prop::collection::vec((any::<u64>(), prop::option::of(0_usize..9)), 0..5),
            text in "[a-c. ]{0,20}",
        ) {
            let is_sound = forms.len() <= FORMS_MAX && forms.iter().all(|form| form.is_sound(places));
            let texts = StoredTexts { places, forms, outcomes }.texts();
            prop_assert_eq!(texts.is_some(), is_sound);
            if let Some(texts) = texts {
                for form in &texts.forms {
                    let _ = form.settled(&text, false);
                }
                let again = StoredTexts::of(&texts);
                prop_assert_eq!(again.clone().texts().map(|texts| StoredTexts::of(&texts)), Some(again));
            }
        }
    }
}
