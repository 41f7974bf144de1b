# deploy/packages/cpack.cmake - the Debian packages, one for each component of install.cmake.
#
#     (cd build/release && cpack -G DEB)          # build/release/packages/*.deb
#
# What a package needs is read from its programs (dpkg-shlibdeps), so a package fits the release of
# Debian or Ubuntu that it was built on.
set(CPACK_PACKAGE_NAME gossipd)
set(CPACK_PACKAGE_VENDOR "gossipd")
set(GOSSIPD_PACKAGE_CONTACT "The gossipd developers <gossipd@localhost>" CACHE STRING
    "Maintainer of the packages: whoever hands them out")
set(CPACK_PACKAGE_CONTACT ${GOSSIPD_PACKAGE_CONTACT})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(GOSSIPD_TORCH_DIR)  # no package has it; the box that runs gossipd has it in the same folder
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${GOSSIPD_TORCH_DIR}/lib)
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# gossipd_package(<component> <package> <summary> <text>)
function(gossipd_package component package summary text)
  string(TOUPPER ${component} id)
  set(CPACK_DEBIAN_${id}_PACKAGE_NAME ${package} PARENT_SCOPE)
  # The first line is the summary; CPack wraps nothing, so the text has its own lines.
  set(CPACK_COMPONENT_${id}_DESCRIPTION "${summary}\n${text}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)

  set(folder ${CMAKE_BINARY_DIR}/deploy/${package})
  file(CONFIGURE OUTPUT ${folder}/copyright @ONLY CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gossipd

Files: *
Copyright: 2026 The gossipd developers
License: Apache-2.0
 On Debian systems the whole text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
  file(CONFIGURE OUTPUT ${folder}/changelog CONTENT
"${package} (${PROJECT_VERSION}) unstable; urgency=medium

  * Release ${PROJECT_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  Tue, 24 Nov 2026 00:00:00 +0000
")
  execute_process(COMMAND gzip -9 --no-name --force --keep changelog WORKING_DIRECTORY ${folder}
    COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${folder}/copyright ${folder}/changelog.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
endfunction()

# gossipd_package_scripts(<component> <package>): what dpkg runs, which the service of gossipd and
# that of gossipd-core have alike.
function(gossipd_package_scripts component package)
  string(TOUPPER ${component} id)
  foreach(name postinst prerm postrm conffiles)
    set(made ${CMAKE_BINARY_DIR}/deploy/${package}/control/${name})
    file(READ ${CMAKE_CURRENT_LIST_DIR}/${name} text)
    string(REPLACE gossipd ${package} text "${text}")
    file(WRITE ${made} "${text}")
    set(permissions OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    if(NOT name STREQUAL "conffiles")
      list(APPEND permissions OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
    endif()
    file(CHMOD ${made} PERMISSIONS ${permissions})
    list(APPEND files ${made})
  endforeach()
  set(CPACK_DEBIAN_${id}_PACKAGE_CONTROL_EXTRA "${files}" PARENT_SCOPE)
endfunction()

set(CPACK_COMPONENTS_ALL "")
if(TARGET gossipd)
  gossipd_package(gossipd gossipd "node of a cluster that trains one neural network" "\
Each box runs one daemon, trains on its own data and tells a few neighbours
how its model has changed. There is no server, and no box waits for a slow,
frozen or dead one.
.
This daemon trains with LibTorch.")
  set(CPACK_DEBIAN_GOSSIPD_PACKAGE_RECOMMENDS gossipctl)
  gossipd_package_scripts(gossipd gossipd)
endif()
gossipd_package(core gossipd-core "node of a training cluster, for training loops of your own" "\
A daemon that exchanges a model with a few neighbours, while a process of
yours on the same box trains it: PyTorch, JAX or NumPy, with the Python
package gossipd.
.
This daemon has no LibTorch and trains nothing itself.")
set(CPACK_DEBIAN_CORE_PACKAGE_RECOMMENDS gossipctl)
gossipd_package_scripts(core gossipd-core)
gossipd_package(gossipctl gossipctl "command-line client of gossipd" "\
Shows what a node, its members and its links are doing, invites, pauses,
extends and leaves; talks to a daemon of this box or of another one.")
if(TARGET gossip-lab)
  gossipd_package(lab gossipd-lab "predicts how gossipd trains on given machines" "\
gossip-lab runs clusters in virtual time with real gradients, and compares
gossipd with other ways of training; gossip-bench measures this box.")
endif()
include(CPack)
