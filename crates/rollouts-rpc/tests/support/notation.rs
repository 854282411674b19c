//! Gob in a notation: hexadecimal digits, `|text|` with its length in front, `[message]` likewise.

pub(crate) const REQUEST_DEF: &str = "[ff81 03 01 01 |Request| 01 ff82 00 01 02 01 |ServiceMethod| 01 0c 00 01 |Seq| 01 06 00 00 00]";
pub(crate) const RESPONSE_DEF: &str = "[ff81 03 01 01 |Response| 01 ff82 00 01 03 01 |ServiceMethod| 01 0c 00 01 |Seq| 01 06 00 01 |Error| 01 0c 00 00 00]";

pub(crate) const TRUE: &str = "[02 00 01]";
pub(crate) const NIL: &str = "[10 00 00]";

pub(crate) fn gob(notation: &str) -> Vec<u8> {
    let mut levels = vec![Vec::new()];
    let mut digits = String::new();
    let mut chars = notation.chars();
    while let Some(char) = chars.next() {
        match char {
            '[' => levels.push(Vec::new()),
            ']' => {
                let message = levels.pop().unwrap();
                levels.last_mut().unwrap().extend(counted(&message));
            }
            '|' => {
                let text: String = chars.by_ref().take_while(|&char| char != '|').collect();
                levels.last_mut().unwrap().extend(counted(text.as_bytes()));
            }
            digit => {
                digits.extend(digit.to_digit(16).map(|_| digit));
                if digits.len() == 2 {
                    levels
                        .last_mut()
                        .unwrap()
                        .push(u8::from_str_radix(&digits, 16).unwrap());
                    digits.clear();
                }
            }
        }
    }
    assert!(digits.is_empty() && levels.len() == 1, "{notation}");
    levels.remove(0)
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    match u8::try_from(bytes.len()).unwrap() {
        length @ 0..=127 => [&[length], bytes].concat(),
        length => [&[0xff, length], bytes].concat(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn the_notation_means_the_bytes_go_wrote() {
    assert_eq!(
        hex(&gob(REQUEST_DEF)),
        "2f ff 81 03 01 01 07 52 65 71 75 65 73 74 01 ff 82 00 01 02 01 0d 53 65 72 76 69 63 65 4d 65 74 68 6f 64 01 \
         0c 00 01 03 53 65 71 01 06 00 00 00"
    );
    assert_eq!(
        hex(&gob(RESPONSE_DEF)),
        "3a ff 81 03 01 01 08 52 65 73 70 6f 6e 73 65 01 ff 82 00 01 03 01 0d 53 65 72 76 69 63 65 4d 65 74 68 6f 64 \
         01 0c 00 01 03 53 65 71 01 06 00 01 05 45 72 72 6f 72 01 0c 00 00 00"
    );
}
