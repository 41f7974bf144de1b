"""Bytes as tokens, from text files of this box: nothing is downloaded."""

import glob
import os

import torch

FOLDER = "/usr/share/common-licenses"  # of Debian's base-files


class Texts(torch.utils.data.Dataset):
    """Pieces of `length` bytes of all files of `folder`; every tenth is held out."""

    def __init__(self, folder=FOLDER, length=64, held_out=False):
        content = b""
        for path in sorted(glob.glob(os.path.join(folder, "*"))):
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    content += file.read()
        whole = len(content) // length * length
        pieces = torch.frombuffer(bytearray(content[:whole]), dtype=torch.uint8)
        pieces = pieces.view(-1, length).long()
        tenth = torch.arange(len(pieces)) % 10 == 0
        self.pieces = pieces[tenth if held_out else ~tenth]

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}
