// net/peer/openssl_handles.h - owners of OpenSSL's objects, each with the function that frees it.
// For the sources of net alone.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace gossipd::openssl {

template <auto release>
struct Release {
  template <typename T>
  void operator()(T* held) const {
    release(held);
  }
};
template <typename T, auto release>
using Handle = std::unique_ptr<T, Release<release>>;

using Key = Handle<EVP_PKEY, EVP_PKEY_free>;
using Certificate = Handle<X509, X509_free>;
using Bio = Handle<BIO, BIO_free>;

}  // namespace gossipd::openssl
