"""The functions that an expression of a shape may call.

All of them are scalar, and their results depend on their arguments alone: on no clock, chance, setting, sequence, file
or version of DuckDB. Its own catalog is not enough to decide that: it lists ``age`` (of one argument),
``current_localtime``, ``current_setting`` and ``hash`` as consistent. So a function is allowed if it is listed here
*and* DuckDB says that it is scalar and consistent. Functions that make much of little (``repeat``, ``range``) are left
out.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from trunkline.delivery.shapes.sealed_duckdb import sealed_duckdb

_NAMES: Final = """
    % & * ** + - / // << >> ^ ^@ @ | || ~ ~~ ~~* ~~~ !~~ !~~*
    abs add cbrt ceil ceiling degrees divide even exp factorial floor gcd greatest greatest_common_divisor isfinite
    isinf isnan lcm least least_common_multiple ln log log10 log2 mod multiply nextafter pi pow power radians round sign
    signbit sqrt subtract trunc xor acos asin atan atan2 cos cot sin tan
    ascii bar base64 bin bit_count bit_length char_length character_length chr concat concat_ws contains decode encode
    ends_with from_base64 from_binary from_hex hamming hex ilike_escape instr jaccard jaro_similarity
    jaro_winkler_similarity lcase left left_grapheme len length length_grapheme levenshtein like_escape lower lpad ltrim
    md5 mismatches nfc_normalize not_ilike_escape not_like_escape octet_length ord position prefix regexp_escape
    regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array replace
    reverse right right_grapheme rpad rtrim sha1 sha256 split starts_with str_split str_split_regex string_split
    string_split_regex string_to_array strip_accents strlen strpos substr substring substring_grapheme suffix
    to_base to_base64 to_binary to_hex translate trim ucase unbin unhex unicode upper url_decode url_encode
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek
    dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day make_date make_time
    make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month
    monthname nanosecond quarter second strftime strptime time_bucket timezone to_centuries to_days to_decades to_hours
    to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks
    to_years try_strptime week weekday weekofyear year yearweek uuid_extract_timestamp uuid_extract_version
    array_cat array_concat array_contains array_distinct array_extract array_has array_has_all array_has_any
    array_indexof array_intersect array_length array_position array_slice array_unique element_at flatten list_cat
    list_concat list_contains list_distinct list_element list_extract list_has list_has_all list_has_any list_indexof
    list_intersect list_position list_slice list_unique list_value
    json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_quote json_type json_valid json_value ->>
"""
LISTED: Final = frozenset(_NAMES.split())
LISTED_MACROS: Final = frozenset({"nullif", "split_part"})  # of DuckDB itself; others cannot be made in it


@cache
def allowed_functions() -> frozenset[str]:
    """Those of the list that are scalar and consistent in the installed DuckDB."""
    query = (
        "SELECT function_name, bool_and(internal), list(DISTINCT function_type), list(DISTINCT stability) "
        "FROM duckdb_functions() GROUP BY function_name"
    )
    with sealed_duckdb() as connection:
        found = connection.execute(query).fetchall()
    return frozenset(
        name
        for name, internal, kinds, stabilities in found
        if internal
        and (
            (name in LISTED and kinds == ["scalar"] and stabilities == ["CONSISTENT"])
            or (name in LISTED_MACROS and kinds == ["macro"])
        )
    )
