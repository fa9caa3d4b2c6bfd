//! Text of clients that is shown to people.

/// The longest text of a client that is kept, in characters.
const MOST_CHARACTERS: usize = 128;

/// A client's text as it may be shown: short, on one line, and with a visible character for each. Characters that change the
/// order of others, or are invisible, are replaced, so that a name cannot look like another one.
pub(super) fn clean(text: &str) -> String {
    let shown = |c: char| if is_shown(c) { c } else { '\u{fffd}' };
    text.chars().take(MOST_CHARACTERS).map(shown).collect()
}

/// Whether a character has a mark, or a width, of its own. Not those of Unicode's categories Cc, Cf, Zl and Zp and those with
/// the property `Default_Ignorable_Code_Point`.
fn is_shown(c: char) -> bool {
    let hidden = matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !hidden && !c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_hide_what_it_is() {
        assert_eq!(clean("train \u{e9}\u{4f60}\u{1f600}"), "train \u{e9}\u{4f60}\u{1f600}");
        for hidden in [
            '\n',
            '\u{1b}',
            '\u{7f}',
            '\u{202e}',
            '\u{2066}',
            '\u{200d}',
            '\u{feff}',
            '\u{e0041}',
            '\u{3164}',
        ] {
            assert_eq!(clean(&format!("a{hidden}b")), "a\u{fffd}b", "{:x}", u32::from(hidden));
        }
        assert_eq!(clean(&"x".repeat(1000)).len(), MOST_CHARACTERS);
    }
}
