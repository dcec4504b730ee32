"""Codes in the names of libraries that are no words: data types, tiles, architectures, constants.

They are told by their shape. A token in which a letter stands beside a digit and that is none of
these may be anything (a model `R1`, a size `70B`, a machine `n17`), so it does not stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SIZES: Final = r"(?:4|8|16|32|64|128)"
_CODES: Final = (
    r"[Ss][Mm]\d{2,3}[afd]?(?![a-z])",
    r"gfx\d{1,4}[a-f]?(?![a-z])",
    r"(?:bf|hf|tf|fp|BF|TF|FP|Bf|Tf|Fp|BFloat|Bfloat|[fsuiFSUI])" + _SIZES + r"(?![0-9])",
    r"[eE]\d[mM]\d(?:fnuz|fnu|fn|b11fnuz)?",
    r"(?:mx|nv)fp\d",
    r"(?:bt|wt|ws|wr|ta|tb|et|m|t|P|x)?\d+(?:x\d+)+x?(?:u\d)?(?![A-Za-z])",
    r"\d{1,5}x(?![A-Za-z])|x\d{1,4}(?![A-Za-z0-9])",
    r"\d+(?:u|l|ul|ull|U|L|UL|ULL|LL)(?![A-Za-z])",
    r"[hsdczi]\d{3,5}(?=gemm|fprop|dgrad|wgrad|conv|cudnn)",
    r"(?<=gemv)\d[NT](?![A-Za-z])",
    r"(?<![A-Za-z0-9])c10(?:d(?![A-Za-z]))?(?![0-9])",
    r"(?<![A-Za-z0-9])[vV][1-9](?![A-Za-z0-9])",
    r"(?<![A-Za-z0-9])(?:\d{1,2}(?:de|d|c)){2,}(?![A-Za-z0-9])",
    r"(?<![A-Za-z0-9])T\d{1,2}(?![A-Za-z0-9])",  # template parameters, as demanglers number them
    r"(?<![A-Za-z0-9])t\d(?:[rs]\d)+(?![A-Za-z0-9])",
    r"(?<=Align)\d{1,2}(?![A-Za-z0-9])|C(?=Align\d)",
    r"(?:(?:bf|fp|mxfp|nvfp|f|s|u)(?:4|8|16|32|64)x)+(?:bf|fp|mxfp|nvfp|f|s|u)(?:4|8|16|32|64)(?![0-9])",
    r"[a-z]?1616(?:8|16|32|64)(?=gemm)",
    r"(?<!\d)[1-5][dD](?![a-z])|3d(?=conv)",
    r"[lq](?=[1-8]_)|(?<![A-Za-z0-9])[lq][1248](?![A-Za-z0-9])",
    r"(?<=[a-z])2(?=[a-z])",
    r"(?<![A-Za-z0-9])(?:g1|ldg\d|ll4mi|tile\d{2,3}t|s[2-6]|1C11|16dp256b|c2r|r2c)(?![A-Za-z0-9])",
    r"MI(?=Open)|(?<=Properties)R0\d00|T(?=Backward\d)|O(?=Bfloat)|[HPQ]\d{2,3}(?=[A-Z][a-z])",
)
_TENSILE: Final = """
AF AFC AFEM AG AMAS APM CMS HAS SAV ASLT ETSP GSUAMBSK ABV ACED AAC MMFSC MXLIBL MXSFNS ASAE ASCE
ASE ASEM ASGT BL BS CADS CLR CB CD DPLB DTLA DTLB DTLM DTVA DTVB DTVSM DTVMXSA DTVMXSB DVO ELFLR EM
EMLL EMLLn EPS FDSI FL FSSC GLS GLVWA GLVWB GR GRCGA GRCGB GRPM GRVW GRVWA GRVWB GRVWn GSU GSUASB
GSUAMB HPLR ICIW ISA IU K KLA LBSPP LBSPPA LBSPPB LBSPPM LBSPPMXSA LBSPPMXSB LDL LDSB LDSTI LDW LPA
LPB LPM LPMXSA LPMXSB LRVW LWPM LWPMn MAC MDA MGRIPM MI MIAV MIWT MKFGSU MMFGLC MO MT NEPBS NLCA
NLCB NTA NTB NTC NTD NTE NTM NTMXSA NTMXSB NTWS NTn NVA NVB NVC NVD NVE NVM NVMXSA NVMXSB NVWS NVn
ONLL OPLV PAP PBD PGR PK PKA PLR RK SCIUI SGRO SGROB SIA SIP SK SKFTR SKXCCM SLW SNLL SPO SRVW SS
SSO SU SUM SUS SVW TDMI TDMS THA THB THC THD THE THM THMXSA THMXSB THWS THn TIN TLDS TLDSM TLDSn
TSGRA TSGRB TT UIOFGRO ULSGRO UMLDSA UMLDSB UPLRP USFGRO USFGROn USI USL USLMX VAW VFLRP VSn VW VWA
VWB WG WGM WGMXCC WGMn WS WSGRA WSGRB U
"""
_TENSILE_NAME: Final = re.compile(r"(?:.*_)?Cijk_[A-Z]")
_TENSILE_TOKEN: Final = re.compile(
    rf"(?:{'|'.join(sorted(_TENSILE.split(), key=len, reverse=True))}|)(?:\d+(?:x\d+)*[a-c]?)?"
    r"(?:EM\d|SL\d)?"
)

_SHORT: Final = """
al an as at bb be bf bh bn bt bw bx by bz cb cd ce ck cp cu db dd df dk do dp dq dt dv dw dx dy dz
eq et ex fc fd fn fp fw fx ge gt ha hh hi hw id if in io ip is it kd kv ld le ll ln lo lr lt ma me
mh mm mn mq mx nc nd ne nn no ns nt nv of on op or pg pi py qk qo sb sf sm sn sq ss st ta tb tf tn
to tr tt ul up us vf vs wg wo wr ws wt xf xy
"""
SHORT_WORDS: Final = frozenset(_SHORT.split())
"""Words of two letters that libraries use; any others may be initials."""

_LARGE: Final = frozenset({2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1})
_DIGITS: Final = 8
"""Numbers of more digits may be those of an account, a job or a telephone."""

_PIECE: Final = re.compile(
    rf"(?P<code>{'|'.join(_CODES)})|(?P<number>\d+)|"
    r"(?P<word>[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+)"
)


def is_tensile(name: str) -> bool:
    """Return whether a name is one that Tensile generates."""
    return _TENSILE_NAME.match(name) is not None


def is_tensile_code(token: str) -> bool:
    """Return whether a token is a code that Tensile puts into names."""
    return _TENSILE_TOKEN.fullmatch(token) is not None


def is_plain_number(digits: str) -> bool:
    """Return whether a number may stay: a size or a count, not the number of somebody."""
    return len(digits) <= _DIGITS or (len(digits) <= 20 and int(digits) in _LARGE)


def pieces(token: str) -> Iterator[tuple[str, str]]:
    """Give the pieces of a token of ASCII letters and digits, each as code, number or word."""
    for found in _PIECE.finditer(token):
        yield found.lastgroup or "", found.group()
